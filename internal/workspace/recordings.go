package workspace

import (
	"context"
	"fmt"
	"io"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/term/recording"
)

// RecordingPolicy is what a workspace asks for; RecordingFilter chooses among recordings.
type (
	RecordingPolicy = recording.Policy
	RecordingFilter = recording.Filter
	RecordingMode   = recording.Mode
)

// DefaultRecordingPolicy holds where a workspace has set nothing.
func DefaultRecordingPolicy() RecordingPolicy { return recording.DefaultPolicy() }

// Recording is what is shown of one; while it goes on, EndedAt is zero and Bytes fresh.
type Recording struct{ recording.Recording }

// Playback is a recording that is being read.
type Playback struct {
	Recording
	io.ReadSeekCloser
	Size     int64 // bytes up to the last whole line
	Modified time.Time
}

// RecordingPolicy tells what holds in the actor's workspace. Needs read, manage or members:manage.
func (s *Service) RecordingPolicy(ctx context.Context, a auth.Actor) (RecordingPolicy, error) {
	what := approval.Action{Name: "recording.read_policy"}
	if err := s.may(ctx, a, what, auth.SandboxesRead, auth.SandboxesManage, auth.MembersManage); err != nil {
		return RecordingPolicy{}, err
	}
	return s.o.Store.RecordingPolicy(ctx, a.Workspace.ID)
}

// SetRecordingPolicy replaces it. Terminals that are open follow: with off their recordings end, with on and always those that are
// not recorded are from now on. Needs members:manage.
func (s *Service) SetRecordingPolicy(ctx context.Context, a auth.Actor, p RecordingPolicy) (RecordingPolicy, error) {
	what := approval.Action{Kind: approval.Other, Name: "recording.set_policy", Target: a.Workspace.Name}
	if err := s.may(ctx, a, what, auth.MembersManage); err != nil {
		return p, err
	}
	if err := p.Check(); err != nil {
		return p, err
	}
	err := s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		return recordingPolicyWords(p), s.o.Store.SetRecordingPolicy(ctx, a.Workspace.ID, p)
	})
	if err != nil {
		return p, err
	}
	s.tapes.mu.Lock()
	for _, t := range s.tapes.live {
		if t.row.WorkspaceID != a.Workspace.ID {
			continue
		}
		t.policy.Mode = p.Mode
		if !p.Input {
			t.input.Store(false)
		}
		if p.Mode == recording.Off {
			t.cancel(errTurnedOff)
		}
	}
	s.tapes.mu.Unlock()
	if p.Mode != recording.Off && s.o.Sandboxes != nil {
		s.recordOpen(context.WithoutCancel(ctx), a)
	}
	s.feed.send(a.Workspace.ID, Change{Kind: "recording"})
	return p, nil
}

func recordingPolicyWords(p RecordingPolicy) string {
	input := "without input"
	if p.Input {
		input = "with input"
	}
	return fmt.Sprintf("%s, %s, %d MiB each, %d MiB in all, %d days", p.Mode, input, p.MaxMB, p.TotalMB, p.KeepDays)
}

// recordOpen records the terminals of a workspace that are open and not recorded yet. What cannot be reached is not typed into
// either; who comes to it makes its recording begin.
func (s *Service) recordOpen(ctx context.Context, a auth.Actor) {
	list, err := s.o.Sandboxes.Records(ctx, sandbox.Filter{WorkspaceID: a.Workspace.ID})
	if err != nil {
		s.o.Log.Error("record open terminals", "cause", err.Error())
		return
	}
	for _, r := range list {
		if r.Status == sandbox.Running {
			go s.recordOpenIn(ctx, a, r) // ends with two calls of bounded time
		}
	}
}

func (s *Service) recordOpenIn(ctx context.Context, a auth.Actor, r sandbox.Record) {
	client, err := s.o.Sandboxes.AwakeAgent(ctx, r.ID)
	var ptys []agent.PTY
	if err == nil {
		ptys, err = client.PTYs(ctx)
	}
	if err != nil {
		s.o.Log.Warn("record open terminals", "sandbox", string(r.ID), "cause", err.Error())
		return
	}
	for _, p := range ptys {
		if p.Status != "running" {
			continue
		}
		t, err := s.startTape(ctx, a, r, p.ID, agent.Size{Cols: p.Cols, Rows: p.Rows})
		if err != nil {
			s.o.Terminals.Disconnect(r.ID, p.ID, closeOf(err))
		}
		s.keepTape(t, -1)
	}
}

// mayReplay refuses who may see no recordings, or not those with what was typed.
func (s *Service) mayReplay(ctx context.Context, a auth.Actor, what approval.Action, input bool) error {
	if input { // passwords are in it
		return s.may(ctx, a, what, auth.AuditRead)
	}
	return s.may(ctx, a, what, auth.SandboxesRead, auth.AuditRead)
}

// Recordings lists, newest first, also those of sandboxes that are gone. Needs read or audit:read.
func (s *Service) Recordings(ctx context.Context, a auth.Actor, f RecordingFilter) ([]Recording, error) {
	if err := s.mayReplay(ctx, a, approval.Action{Name: "recording.list", SandboxID: f.SandboxID}, false); err != nil {
		return nil, err
	}
	if f.WorkspaceID = a.Workspace.ID; f.WorkspaceID == "" || f.SandboxID != "" && !sandbox.ID(f.SandboxID).Valid() {
		return nil, errNotFound()
	}
	list, err := s.o.Store.Recordings(ctx, f)
	if err != nil {
		return nil, err
	}
	sizes := s.liveSizes()
	out := make([]Recording, len(list))
	for i, r := range list {
		out[i] = withSize(r, sizes)
	}
	return out, nil
}

func withSize(r recording.Recording, live map[string]int64) Recording {
	if n, goes := live[r.ID]; goes {
		r.Bytes = n
	}
	return Recording{r}
}

// locateRecording gives one of the actor's workspace. Foreign and unknown ones are answered alike.
func (s *Service) locateRecording(ctx context.Context, a auth.Actor, id string) (recording.Recording, error) {
	missing := fault.New(fault.NotFound, "Recording not found")
	if !recording.ValidID(id) || a.Workspace.ID == "" {
		return recording.Recording{}, missing
	}
	r, err := s.o.Store.RecordingByID(ctx, id)
	if fault.Is(err, fault.NotFound) || err == nil && r.WorkspaceID != a.Workspace.ID {
		return recording.Recording{}, missing
	}
	return r, err
}

// Recording gives one. Needs read or audit:read; with what was typed, audit:read.
func (s *Service) Recording(ctx context.Context, a auth.Actor, id string) (Recording, error) {
	what := approval.Action{Name: "recording.read", Target: id}
	if err := s.mayReplay(ctx, a, what, false); err != nil {
		return Recording{}, err
	}
	r, err := s.locateRecording(ctx, a, id)
	if err != nil {
		return Recording{}, err
	}
	return withSize(r, s.liveSizes()), nil
}

// PlayRecording opens one for reading; who watches is on record. Needs read or audit:read; with what was typed, audit:read.
func (s *Service) PlayRecording(ctx context.Context, a auth.Actor, id string) (Playback, error) {
	what := approval.Action{Kind: approval.Other, Name: "recording.play", Target: id}
	if err := s.mayReplay(ctx, a, what, false); err != nil {
		return Playback{}, err
	}
	r, err := s.locateRecording(ctx, a, id)
	if err != nil {
		return Playback{}, err
	}
	what.SandboxID = r.SandboxID
	if err := s.mayReplay(ctx, a, what, r.Input); err != nil {
		return Playback{}, err
	}
	if s.o.Recordings == nil {
		return Playback{}, fault.New(fault.NotFound, "Recording not found")
	}
	var in *recording.Reader
	err = s.change(ctx, a, what, func(context.Context) (string, error) {
		var err error
		in, err = s.o.Recordings.Read(id)
		return "of " + r.PTY, err
	})
	if err != nil {
		return Playback{}, err
	}
	return Playback{Recording: withSize(r, s.liveSizes()), ReadSeekCloser: in, Size: in.Size, Modified: in.Modified}, nil
}

// DeleteRecording deletes one that has ended. Needs manage.
func (s *Service) DeleteRecording(ctx context.Context, a auth.Actor, id string) error {
	what := approval.Action{Kind: approval.Other, Name: "recording.delete", Target: id}
	if err := s.may(ctx, a, what, auth.SandboxesManage); err != nil {
		return err
	}
	r, err := s.locateRecording(ctx, a, id)
	if err != nil {
		return err
	}
	what.SandboxID = r.SandboxID
	if _, goes := s.liveSizes()[id]; goes || r.EndedAt.IsZero() {
		return fault.New(fault.Conflict, "This recording still goes on. It can be deleted once its terminal has ended.")
	}
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) { return recordingWords(r), s.removeRecording(ctx, r) })
	if err == nil {
		s.feed.send(a.Workspace.ID, Change{Kind: "recording", SandboxID: r.SandboxID})
	}
	return err
}

// removeRecording removes the file first: a row without a file shows that something was there, a file without a row shows nothing.
func (s *Service) removeRecording(ctx context.Context, r recording.Recording) error {
	if s.o.Recordings != nil {
		if err := s.o.Recordings.Remove(r.ID); err != nil {
			return err
		}
	}
	return s.o.Store.DeleteRecording(ctx, r.ID)
}

func recordingWords(r recording.Recording) string {
	return fmt.Sprintf("of %s, opened by %s, from %s, %d bytes", r.PTY, r.By, r.StartedAt.UTC().Format(time.RFC3339), r.Bytes)
}

// MarkTerminals puts a marker into the recordings of a sandbox's terminals where they are now, of one or with pty "" of all: what
// was approved or denied, for example. The label is text; secrets are hidden in it. Terminals that are not recorded take none.
func (s *Service) MarkTerminals(id sandbox.ID, pty, label string) {
	if s.o.Terminals != nil {
		s.o.Terminals.Mark(id, pty, label)
	}
}

// recordingSweep is how often recordings are measured and old ones go.
const recordingSweep = 15 * time.Second

// SweepRecordings deletes what is older or more than policies keep, on record, until ctx ends.
func (s *Service) SweepRecordings(ctx context.Context) {
	if s.o.Recordings == nil {
		return
	}
	tick := time.NewTicker(recordingSweep)
	defer tick.Stop()
	for {
		s.expireRecordings(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *Service) expireRecordings(ctx context.Context) {
	err := s.measureRecordings(ctx)
	totals := map[string]int64{}
	if err == nil {
		totals, err = s.o.Store.RecordingTotals(ctx)
	}
	for workspaceID, total := range totals {
		if err == nil {
			err = s.expireIn(ctx, workspaceID, total)
		}
	}
	if err != nil && ctx.Err() == nil {
		s.o.Log.Error("look for old recordings", "cause", err.Error())
	}
}

func (s *Service) measureRecordings(ctx context.Context) error {
	for id, n := range s.liveSizes() {
		if err := s.o.Store.MeasureRecording(ctx, id, n); err != nil {
			return err
		}
	}
	return nil
}

// expireIn deletes those of a workspace that ended too long ago, and the oldest ones while there are too many bytes.
func (s *Service) expireIn(ctx context.Context, workspaceID string, total int64) error {
	p, err := s.o.Store.RecordingPolicy(ctx, workspaceID)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		oldest, err := s.o.Store.OldestRecordings(ctx, workspaceID, 1)
		if err != nil || len(oldest) == 0 {
			return err
		}
		r, why := oldest[0], ""
		switch {
		case s.o.Now().Sub(r.EndedAt) > time.Duration(p.KeepDays)*24*time.Hour:
			why = fmt.Sprintf("older than %d days", p.KeepDays)
		case total > p.TotalMB<<20:
			why = fmt.Sprintf("all together were more than %d MiB", p.TotalMB)
		default:
			return nil
		}
		e := audit.Event{
			WorkspaceID: workspaceID, ActorKind: auth.System, Actor: "system", SandboxID: r.SandboxID, Action: "recording.expire",
			Target: r.ID, Outcome: audit.OK, Detail: why + ": " + recordingWords(r),
		}
		if err := s.o.Audit.Note(ctx, e); err != nil {
			return err
		}
		if err := s.removeRecording(ctx, r); err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		total -= r.Bytes
		s.feed.send(workspaceID, Change{Kind: "recording", SandboxID: r.SandboxID})
	}
	return nil
}
