package handlers

import (
	"fmt"
	"slices"
	"strings"

	"sandgate/internal/workspace"
	"sandgate/sandbox/effect"
	"sandgate/views"
)

// maxFilesShown bounds the changed paths of a trial on a page.
const maxFilesShown = 200

// effect shows what a command did in a copy.
func (v *visit) effect(e *workspace.Effect) *views.ApprovalEffect {
	out := &views.ApprovalEffect{
		Words:  fmt.Sprintf("tried by %s in a copy with the network cut · %s · %s", display(e.By), took(e.Seconds), v.s.when(e.At).Text),
		Stdout: escapeHidden(e.Stdout), Stderr: escapeHidden(e.Stderr), Cut: e.OutputCut, FilesWhy: e.FilesWhy, NotShown: e.NotShown,
	}
	exit := itoa(e.ExitCode)
	switch {
	case e.TimedOut:
		exit = "ended after its time"
	case e.Signal != "":
		exit = "killed by " + display(e.Signal)
	}
	left, reach := "nothing", "nothing"
	if len(e.Left) > 0 {
		left = plural(len(e.Left), "process", "processes")
	}
	if len(e.Denied) > 0 {
		reach = plural(len(e.Denied), "address", "addresses")
	}
	out.Facts = []views.Fact{
		{Name: "Exit", Value: exit},
		{Name: "Files", Value: fmt.Sprintf("+%d  ~%d  −%d", e.Added, e.Changed, e.Deleted)},
		{Name: "Left running", Value: left},
		{Name: "Tried to reach", Value: reach},
	}
	for i, f := range e.Files {
		if i == maxFilesShown {
			out.NotShown = append(slices.Clone(out.NotShown), fmt.Sprintf("%d more changed paths, which are left out here.", len(e.Files)-i))
			break
		}
		out.Files = append(out.Files, effectFile(f))
	}
	for _, d := range e.Denied {
		words := display(short(d.Where(), maxWhere))
		if d.Count > 1 {
			words += fmt.Sprintf(" · %d times", d.Count)
		}
		out.Denied = append(out.Denied, words)
	}
	for _, p := range e.Left {
		out.Left = append(out.Left, display(p))
	}
	return out
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return itoa(n) + " " + many
}

func effectFile(f effect.Change) views.EffectFile {
	classes := map[string]string{effect.Added: "add", effect.Deleted: "del", effect.Changed: "chg"}
	words := []string{f.What}
	if f.Kind != effect.File {
		words = append(words, f.Kind)
	}
	if f.Was != "" {
		words = append(words, "was a "+f.Was)
	}
	if f.Under > 0 {
		words = append(words, "with "+plural(f.Under, "file", "files")+" in it")
	}
	switch {
	case f.What == effect.Changed && f.Kind == effect.File && f.Size != f.OldSize:
		words = append(words, size(f.OldSize)+" → "+size(f.Size))
	case f.What == effect.Added && f.Kind == effect.File:
		words = append(words, size(f.Size))
	}
	if f.What == effect.Changed && f.Mode != f.OldMode {
		words = append(words, fmt.Sprintf("mode %04o → %04o", f.OldMode, f.Mode))
	}
	if f.Owner != "" {
		words = append(words, "owner "+f.OldOwner+" → "+f.Owner)
	}
	if f.Link != "" {
		words = append(words, "→ "+display(short(f.Link, 100)))
	}
	out := views.EffectFile{Path: display(f.Path), Words: strings.Join(words, " · "), Class: classes[f.What], Lines: diffLines(f.Diff)}
	if f.DiffCut {
		out.Lines = append(out.Lines, views.DiffLine{Class: "skip", New: []views.Piece{{Text: "the rest is left out"}}})
	}
	return out
}
