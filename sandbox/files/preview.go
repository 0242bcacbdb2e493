// Package files owns what the host needs to speak of files inside a sandbox: path rules, names made safe to show, previews.
// It must never open a path on the host; every byte comes from the agent and is hostile.
package files

// Preview is what a page can show of a file without loading it whole.
type Preview struct {
	Kind  string     // "text", "image", "csv", "binary", "empty", "large" (image over its cap)
	Media string     // for "image": image/png, image/jpeg, image/gif, image/webp
	Size  int64      // of the file
	Text  string     // "text": the head, valid UTF-8; "binary": a hex dump of the head
	Cut   bool       // more follows than is shown
	Rows  [][]string // "csv": header and first rows
	Wide  bool       // "csv": columns were left out
}
