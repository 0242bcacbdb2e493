package handlers

import (
	"bytes"
	"net/http"
	"net/url"
	"path"
	"strings"

	"sandgate/auth"
	"sandgate/internal/fault"
	"sandgate/internal/workspace"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/views"
	"sandgate/views/ui"
)

const filesPerPage = 200

// filesPane is one folder: for a script the pane alone, or with a cursor its further lines; else the sandbox's page.
func (s *Server) filesPane(v *visit) error {
	q := v.Request().URL.Query()
	if !v.partial() {
		to := v.base() + "/sandboxes/" + v.Param("id")
		if q.Get("path") != "" || q.Get("path_b64") != "" {
			to += "?" + v.Request().URL.RawQuery
		}
		return v.Redirect(http.StatusSeeOther, to)
	}
	b, err := s.o.Service.Sandbox(v.ctx(), v.actor, v.Param("id"))
	if err != nil {
		return err
	}
	f, err := v.folder(b, q)
	if err != nil {
		return err
	}
	if q.Get("cursor") != "" {
		return v.render(http.StatusOK, f.Lines())
	}
	return v.render(http.StatusOK, f.Pane())
}

// here is the folder that an address names; without one the place where commands start.
func here(b workspace.Sandbox, q url.Values) ([]byte, error) {
	if q.Get("path") == "" && q.Get("path_b64") == "" {
		if b.Cwd != "" {
			return []byte(b.Cwd), nil
		}
		return []byte(agent.Workdir), nil
	}
	return pathOf(q, "path")
}

// folder reads a page of a folder. What goes wrong inside the sandbox is shown in the pane: the terminal beside it still works.
func (v *visit) folder(b workspace.Sandbox, q url.Values) (views.Files, error) {
	dir, err := here(b, q)
	if err != nil {
		return views.Files{}, err
	}
	dir = []byte(path.Clean(string(dir)))
	at := v.base() + "/sandboxes/" + string(b.ID)
	shown, _ := displayBytes(dir)
	f := views.Files{Here: shown, HereQuery: pathQuery("path", dir), Base: at, Crumbs: crumbs(at, dir)}
	if b.Status != sandbox.Running {
		f.Problem = "The sandbox is not running."
		if asleep(b.Status) {
			f.Problem = "The sandbox is suspended. Its files are here again when it wakes."
		}
		return f, nil
	}
	list, err := v.s.o.Service.ListFiles(v.ctx(), v.actor, string(b.ID), dir, q.Get("cursor"), filesPerPage, 1)
	if err != nil {
		if fault.KindOf(err) == fault.Internal {
			v.s.log.Warn("list a folder", "request_id", v.requestID(), "sandbox", string(b.ID), "cause", err)
		}
		f.Problem = fault.Public(err)
		return f, nil
	}
	f.CanWrite, f.Total = v.actor.May(auth.SandboxesRun), list.Total
	f.Archive = at + "/files/archive?format=zip&" + f.HereQuery
	if list.Cursor != "" {
		f.More = at + "/files?" + f.HereQuery + "&cursor=" + queryEscape(list.Cursor)
	}
	file, _ := pathOf(q, "file")
	for _, e := range list.Entries {
		f.Entries = append(f.Entries, v.entry(at, dir, e, file))
	}
	return f, nil
}

// crumbs lead to each folder above.
func crumbs(at string, dir []byte) []ui.Link {
	out := []ui.Link{{Text: "/", URL: at + "?" + pathQuery("path", []byte("/"))}}
	sofar := []byte{}
	for part := range bytes.SplitSeq(dir, []byte("/")) {
		if len(part) == 0 {
			continue
		}
		sofar = join(append(sofar, '/'), part)
		sofar = []byte(path.Clean(string(sofar)))
		shown, _ := displayBytes(part)
		out = append(out, ui.Link{Text: shown, URL: at + "?" + pathQuery("path", sofar)})
	}
	return out
}

// entry is a line of a folder. Everything it leads to goes by the path's bytes, never by what is shown.
func (v *visit) entry(at string, dir []byte, e agent.FileInfo, selected []byte) views.FileEntry {
	full := join(dir, e.NameB64)
	name, odd := displayBytes(e.NameB64)
	q := pathQuery("path", full)
	kind := e.Type
	out := views.FileEntry{
		Name: name, Odd: odd, Modified: v.s.when(e.ModifiedAt),
		Rename: at + "/files/rename?" + q, Delete: at + "/files/delete?" + q, Selected: bytes.Equal(full, selected) && len(selected) > 0,
	}
	if kind == "symlink" {
		out.Target, _ = displayBytes(e.TargetB64)
		out.Broken = e.TargetType == ""
		kind = e.TargetType
	}
	switch kind {
	case "directory":
		out.Folder, out.Icon, out.Open = true, "folder", at+"?"+q
		out.Archive = at + "/files/archive?format=zip&" + q
	case "file":
		out.Icon = fileIcon(e.NameB64)
		out.Open = at + "?" + pathQuery("path", dir) + "&" + pathQuery("file", full)
		out.Download = at + "/files/raw?" + q
		if e.Type == "file" {
			out.Size = size(e.Size)
		}
	default:
		out.Icon, out.Size = "lock", strings.ReplaceAll(kind, "_", " ")
	}
	if e.Type == "symlink" && !out.Folder {
		out.Icon = "link"
	}
	return out
}

func fileIcon(name []byte) string {
	switch strings.ToLower(path.Ext(string(name))) {
	case ".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".bmp":
		return "image"
	case ".csv", ".tsv", ".parquet", ".xlsx":
		return "table"
	case ".zip", ".tar", ".gz", ".tgz", ".xz", ".zst", ".bz2", ".whl":
		return "file-archive"
	case ".md", ".txt", ".py", ".sh", ".json", ".yaml", ".yml", ".toml", ".log", ".js", ".ts", ".go", ".c", ".h", ".rs", ".html", ".css", ".sql":
		return "file-text"
	default:
		return "file"
	}
}

// filePreview is the preview alone, for a script.
func (s *Server) filePreview(v *visit) error {
	b, err := s.o.Service.Sandbox(v.ctx(), v.actor, v.Param("id"))
	if err != nil {
		return err
	}
	p, err := v.preview(b, v.Request().URL.Query())
	if err != nil {
		return err
	}
	return v.render(http.StatusOK, p.Pane())
}

func (v *visit) preview(b workspace.Sandbox, q url.Values) (views.Preview, error) {
	file, err := pathOf(q, "file")
	if err != nil {
		return views.Preview{}, err
	}
	at := v.base() + "/sandboxes/" + string(b.ID)
	shown, _ := displayBytes(file)
	name, _ := displayBytes(baseName(file))
	fq := pathQuery("path", file)
	p := views.Preview{
		Name: name, Path: shown, Download: at + "/files/raw?" + fq, ImageURL: at + "/files/image?" + fq,
		Close: at + "?" + pathQuery("path", parent(file)),
	}
	got, err := v.s.o.Service.PreviewFile(v.ctx(), v.actor, string(b.ID), file)
	if err != nil {
		if fault.KindOf(err) == fault.Internal {
			return p, err
		}
		p.Problem, p.Download = fault.Public(err), ""
		return p, nil
	}
	p.Kind, p.Size, p.Cut, p.Wide, p.Text = got.Kind, size(got.Size), got.Cut, got.Wide, previewText(got.Text)
	for _, row := range got.Rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = display(cell)
		}
		p.Rows = append(p.Rows, cells)
	}
	return p, nil
}

// previewText shows a text with its lines and tabs, and everything that can't be seen as an escape.
func previewText(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\r' {
			return -1
		}
		return r
	}, escapeHidden(s))
}
