package handlers

import (
	"net/http"

	"sandgate/internal/fault"
	"sandgate/views"
	"sandgate/views/ui"
)

// fileForm is a question about a path: its address carries the path, its script asks for the body alone.
func (v *visit) fileForm(what string, p []byte, back []byte) views.Confirm {
	at := v.base() + "/sandboxes/" + v.Param("id")
	return views.Confirm{
		Shell: v.shell("Files", "sandboxes"), Action: at + "/files/" + what + "?" + pathQuery("path", p), Cancel: at + "?" + pathQuery("path", back),
	}
}

func (v *visit) pathInAddress() ([]byte, error) { return pathOf(v.Request().URL.Query(), "path") }

// filesChanged tells the page's script to read the folder again, or leads a form back to it.
func (v *visit) filesChanged(dir []byte) error {
	if v.partial() {
		v.Response().Header().Set("HX-Trigger", "files-changed")
		v.Response().Header().Set("HX-Reswap", "none")
		return v.String(http.StatusOK, "")
	}
	return v.backTo(dir)
}

func (v *visit) folderPage(dir []byte, name, wrong string) views.Confirm {
	p := v.fileForm("new-folder", dir, dir)
	p.Heading, p.Button = "New folder", "Create folder"
	p.Words = []string{"In " + display(string(dir))}
	p.Fields = []ui.Field{{Name: "name", Label: "Name", Value: name, Wrong: wrong}}
	return p
}

func (s *Server) folderForm(v *visit) error {
	dir, err := v.pathInAddress()
	if err != nil {
		return err
	}
	return v.renderForm(http.StatusOK, v.folderPage(dir, "", ""))
}

func (s *Server) folderCreate(v *visit) error {
	dir, err := v.pathInAddress()
	if err != nil {
		return err
	}
	name, err := fileName(v.FormValue("name"))
	if err == nil {
		_, err = s.o.Service.MakeDirectory(v.ctx(), v.actor, v.Param("id"), join(dir, name))
	}
	if sentence, fields, ok := wrongIn(err); ok {
		return v.renderForm(http.StatusUnprocessableEntity, v.folderPage(dir, v.FormValue("name"), orElse(fields["name"], sentence)))
	}
	if err != nil {
		return err
	}
	return v.filesChanged(dir)
}

func orElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

func (v *visit) renamePage(p []byte, name, wrong string) views.Confirm {
	c := v.fileForm("rename", p, parent(p))
	shown, _ := displayBytes(baseName(p))
	c.Heading, c.Button = "Rename “"+shown+"”", "Rename"
	c.Fields = []ui.Field{{Name: "name", Label: "New name", Value: name, Wrong: wrong, Hint: "It stays in its folder. An absolute path moves it."}}
	return c
}

func (s *Server) renameForm(v *visit) error {
	p, err := v.pathInAddress()
	if err != nil {
		return err
	}
	name, odd := displayBytes(baseName(p))
	if odd {
		name = "" // what is shown is not what it is called: there is nothing true to begin with
	}
	return v.renderForm(http.StatusOK, v.renamePage(p, name, ""))
}

func (s *Server) rename(v *visit) error {
	p, err := v.pathInAddress()
	if err != nil {
		return err
	}
	to, err := renamed(p, v.FormValue("name"))
	if err == nil {
		_, err = s.o.Service.MoveFile(v.ctx(), v.actor, v.Param("id"), p, to)
	}
	if sentence, fields, ok := wrongIn(err); ok {
		return v.renderForm(http.StatusUnprocessableEntity, v.renamePage(p, v.FormValue("name"), orElse(fields["name"], sentence)))
	}
	if err != nil {
		return err
	}
	return v.filesChanged(parent(p))
}

// renamed is where a typed name leads: beside the old one, or to an absolute path.
func renamed(p []byte, typed string) ([]byte, error) {
	if len(typed) > 0 && typed[0] == '/' {
		return checked([]byte(typed), "name")
	}
	name, err := fileName(typed)
	if err != nil {
		return nil, err
	}
	return join(parent(p), name), nil
}

// deleteForm asks, and says what goes with a folder.
func (s *Server) deleteForm(v *visit) error {
	p, err := v.pathInAddress()
	if err != nil {
		return err
	}
	info, err := s.o.Service.StatFile(v.ctx(), v.actor, v.Param("id"), p)
	if err != nil {
		return err
	}
	shown, _ := displayBytes(baseName(p))
	c := v.fileForm("delete", p, parent(p))
	c.Heading, c.Button, c.Danger = "Delete “"+shown+"”?", "Delete", true
	switch info.Type {
	case "directory":
		c.Words = []string{"The folder goes with everything in it, in all its subfolders. This can't be undone."}
		c.Hidden = []ui.Field{{Name: "recursive", Value: "1"}}
	case "symlink":
		c.Words = []string{"Only the link goes; what it leads to stays."}
	default:
		c.Words = []string{"The file of " + size(info.Size) + " can't be brought back."}
	}
	return v.renderForm(http.StatusOK, c)
}

func (s *Server) deleteFile(v *visit) error {
	p, err := v.pathInAddress()
	if err != nil {
		return err
	}
	err = s.o.Service.DeleteFile(v.ctx(), v.actor, v.Param("id"), p, v.FormValue("recursive") == "1")
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	return v.filesChanged(parent(p))
}
