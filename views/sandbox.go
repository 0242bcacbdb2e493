package views

// closePreview is the page's address without the preview.
func (p Sandbox) closePreview() string {
	if p.Preview != nil {
		return p.Preview.Close
	}
	return p.URL
}

// tip is what the mouse shows over a file: the whole name, which may be cut in the list.
func (e FileEntry) tip() string {
	if e.Target != "" {
		return e.Name + " → " + e.Target
	}
	return e.Name
}
