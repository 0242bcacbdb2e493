package handlers

import (
	"fmt"
	"strings"

	"sandgate/views"
)

// maxDiffLines bounds the rows of one comparison on a page.
const maxDiffLines = 4000

// diffLines lays a unified comparison out side by side: lines that were taken out beside those that took their place.
func diffLines(unified string) (out []views.DiffLine) {
	var oldN, newN int
	var gone, come []string
	flush := func() {
		for i := range max(len(gone), len(come)) {
			l := views.DiffLine{}
			switch {
			case i >= len(come):
				l.Class = "del"
			case i >= len(gone):
				l.Class = "add"
			default:
				l.Class = "chg"
			}
			if i < len(gone) {
				l.OldN, l.Old = itoa(oldN), linePieces(gone[i])
				oldN++
			}
			if i < len(come) {
				l.NewN, l.New = itoa(newN), linePieces(come[i])
				newN++
			}
			out = append(out, l)
		}
		gone, come = nil, nil
	}
	for line := range strings.Lines(unified) {
		if len(out) >= maxDiffLines {
			return append(out, views.DiffLine{Class: "skip", New: []views.Piece{{Text: "the rest is left out"}}})
		}
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "--- ") && oldN == 0, strings.HasPrefix(line, "+++ ") && newN == 0:
		case strings.HasPrefix(line, "@@ "):
			flush()
			if n, err := fmt.Sscanf(line, "@@ -%d", &oldN); n != 1 || err != nil {
				return out
			}
			if _, rest, ok := strings.Cut(line, " +"); ok {
				_, _ = fmt.Sscanf(rest, "%d", &newN)
			}
			oldN, newN = max(oldN, 1), max(newN, 1)
			if len(out) > 0 || oldN > 1 {
				out = append(out, views.DiffLine{Class: "skip", New: []views.Piece{{Text: fmt.Sprintf("from line %d on", newN)}}})
			}
		case strings.HasPrefix(line, "-"):
			if len(come) > 0 {
				flush()
			}
			gone = append(gone, line[1:])
		case strings.HasPrefix(line, "+"):
			come = append(come, line[1:])
		case strings.HasPrefix(line, `\`): // no line end at the end
		default:
			flush()
			text := linePieces(strings.TrimPrefix(line, " "))
			out = append(out, views.DiffLine{OldN: itoa(oldN), Old: text, NewN: itoa(newN), New: text})
			oldN, newN = oldN+1, newN+1
		}
	}
	flush()
	return out
}

// wholeLines shows a text that replaces nothing.
func wholeLines(text string) (out []views.DiffLine) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if n > maxDiffLines {
			return append(out, views.DiffLine{Class: "skip", New: []views.Piece{{Text: "the rest is left out"}}})
		}
		out = append(out, views.DiffLine{Class: "add", NewN: itoa(n), New: linePieces(strings.TrimSuffix(line, "\n")), OneSided: true})
	}
	return out
}

func linePieces(line string) []views.Piece { return plainPieces(line, "", "") }
