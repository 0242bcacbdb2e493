package api

import (
	"context"
	"time"

	"github.com/labstack/echo/v4"

	"sandgate/internal/workspace"
	"sandgate/sandbox/effect"
)

// dryRunTime bounds a trial: a copy, the command for at most a minute, and the comparison of files.
const dryRunTime = 5 * time.Minute

type effectFileBody struct {
	Path          string  `json:"path"`
	What          string  `json:"what" enum:"added,changed,deleted"`
	Kind          string  `json:"kind" enum:"file,directory,symlink,pipe,device"`
	Was           *string `json:"was" doc:"Its kind before, where that was another."`
	Size          int64   `json:"size"`
	OldSize       int64   `json:"old_size"`
	Mode          uint32  `json:"mode"`
	OldMode       uint32  `json:"old_mode"`
	Owner         *string `json:"owner" doc:"UID:GID, where it changed."`
	OldOwner      *string `json:"old_owner"`
	Link          *string `json:"link"`
	Digest        *string `json:"digest" doc:"SHA-256 of the content."`
	OldDigest     *string `json:"old_digest"`
	Diff          *string `json:"diff" doc:"Unified, of texts."`
	DiffTruncated bool    `json:"diff_truncated"`
	FilesBelow    int     `json:"files_below" doc:"Of a directory that is gone: files that were in it."`
}

type effectDeniedBody struct {
	Protocol    string `json:"protocol"`
	Destination string `json:"destination"`
	Port        uint16 `json:"port"`
	Why         string `json:"why"`
	Count       int64  `json:"count"`
}

type effectBody struct {
	At         string             `json:"at"`
	By         string             `json:"by"`
	ExitCode   int                `json:"exit_code"`
	Signal     *string            `json:"signal"`
	TimedOut   bool               `json:"timed_out"`
	Duration   float64            `json:"duration"`
	Stdout     string             `json:"stdout"`
	Stderr     string             `json:"stderr"`
	Truncated  bool               `json:"truncated"`
	Added      int                `json:"added" doc:"Paths in all; files may hold fewer."`
	Changed    int                `json:"changed"`
	Deleted    int                `json:"deleted"`
	Files      []effectFileBody   `json:"files"`
	FilesError *string            `json:"files_error" doc:"Why files are not compared."`
	Left       []string           `json:"left_running" doc:"Names of processes that it left behind."`
	Denied     []effectDeniedBody `json:"denied" doc:"What it tried to reach; all is refused in a copy."`
	FilesOnly  bool               `json:"files_only" doc:"The copy began without what was in memory."`
	NotShown   []string           `json:"not_shown" doc:"What a trial cannot show, in words."`
}

func toEffect(e *workspace.Effect) *effectBody {
	if e == nil {
		return nil
	}
	b := &effectBody{
		At: stamp(e.At), By: e.By, ExitCode: e.ExitCode, Signal: orNull(e.Signal), TimedOut: e.TimedOut, Duration: e.Seconds, Stdout: e.Stdout, Stderr: e.Stderr,
		Truncated: e.OutputCut, Added: e.Added, Changed: e.Changed, Deleted: e.Deleted, Files: []effectFileBody{}, FilesError: orNull(e.FilesWhy),
		Left: []string{}, Denied: []effectDeniedBody{}, FilesOnly: e.FilesOnly, NotShown: e.NotShown,
	}
	b.Left = append(b.Left, e.Left...)
	for _, f := range e.Files {
		b.Files = append(b.Files, toEffectFile(f))
	}
	for _, d := range e.Denied {
		b.Denied = append(b.Denied, effectDeniedBody{d.Protocol, d.Destination, d.Port, d.Why, d.Count})
	}
	return b
}

func toEffectFile(f effect.Change) effectFileBody {
	return effectFileBody{
		Path: f.Path, What: f.What, Kind: f.Kind, Was: orNull(f.Was), Size: f.Size, OldSize: f.OldSize, Mode: f.Mode, OldMode: f.OldMode,
		Owner: orNull(f.Owner), OldOwner: orNull(f.OldOwner), Link: orNull(f.Link), Digest: orNull(f.Digest), OldDigest: orNull(f.OldDigest),
		Diff: orNull(f.Diff), DiffTruncated: f.DiffCut, FilesBelow: f.Under,
	}
}

// dryRun: POST /v1/approvals/{approval}/dry-run.
func (s *server) dryRun(c echo.Context) error {
	ctx, cancel := context.WithTimeout(c.Request().Context(), dryRunTime)
	defer cancel()
	return answerApproval(c)(s.svc.TryRequest(ctx, actor(c), c.Param("approval")))
}
