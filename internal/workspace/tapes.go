package workspace

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"sandgate/auth"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/term"
	"sandgate/sandbox/term/recording"
)

// tapes are the recordings under way. Zero value ready.
type tapes struct {
	mu   sync.Mutex
	live map[string]*tape // by sandbox and terminal
}

// tape is one terminal's recording under way; one part follows another.
type tape struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	pty    string
	box    sandbox.ID
	input  atomic.Bool // what is typed is still wanted

	// guarded by tapes.mu; row and w change in runTape alone
	policy recording.Policy
	row    recording.Recording
	w      *recording.Writer
}

// sink is a writer whose input can be turned off.
type sink struct {
	*recording.Writer
	input *atomic.Bool
}

func (s sink) Input(at time.Time, p []byte) error {
	if !s.input.Load() {
		return nil
	}
	return s.Writer.Input(at, p)
}

var errTurnedOff = errors.New("recording was turned off")

const (
	tapePause     = time.Second
	tapeMostPause = 30 * time.Second
)

func tapeKey(box sandbox.ID, pty string) string { return string(box) + "/" + pty }

// startTape begins to record a terminal if the workspace's policy asks for it and nothing does so yet; the caller then keeps it
// (keepTape) or drops it. nil: nothing to do. An error means that the terminal must not be used.
func (s *Service) startTape(ctx context.Context, a auth.Actor, r sandbox.Record, pty string, size agent.Size) (*tape, error) {
	asked, err := s.typingIsAsked(ctx, a, r)
	if err != nil {
		return nil, err
	}
	s.tapes.mu.Lock() // a policy that is set meanwhile finds the recording, or is found here
	defer s.tapes.mu.Unlock()
	p, err := s.o.Store.RecordingPolicy(ctx, r.WorkspaceID)
	if err != nil {
		return nil, err
	}
	if asked { // what was approved without being known is recorded, or does not happen
		p.Mode = recording.Always
	}
	if p.Mode == recording.Off {
		return nil, nil
	}
	key := tapeKey(r.ID, pty)
	if s.tapes.live[key] != nil {
		return nil, nil
	}
	t := &tape{pty: pty, box: r.ID, policy: p, row: recording.Recording{
		WorkspaceID: r.WorkspaceID, SandboxID: string(r.ID), Label: s.mask(ctx, string(r.ID)).hide(r.Label), PTY: pty, Part: 1,
		ByKind: string(a.Kind), ByID: actorID(a), By: a.Name, Input: p.Input,
	}}
	t.input.Store(p.Input)
	if err := s.beginPart(ctx, t, size, 0); err != nil {
		s.o.Log.Error("record a terminal", "sandbox", string(r.ID), "pty", pty, "cause", err.Error())
		if p.Mode == recording.Always {
			return nil, fault.Wrap(err, fault.HostFull, "Terminals of this workspace must be recorded, and this one cannot be at the moment, so it is not opened. The operator sees the cause in the server's log.")
		}
		return nil, nil
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	if s.tapes.live == nil {
		s.tapes.live = map[string]*tape{}
	}
	s.tapes.live[key] = t
	return t, nil
}

// beginPart makes the file and the row of a tape's next part. Called with tapes.mu held.
func (s *Service) beginPart(ctx context.Context, t *tape, size agent.Size, offset int64) error {
	if s.o.Recordings == nil {
		return errors.New("there is no place for recordings")
	}
	hide, err := s.tapeSecrets(ctx, t.box)
	if err != nil {
		return err
	}
	t.row.ID, t.row.StartedAt = sandbox.RandomID("rec"), time.Now().Truncate(time.Microsecond).UTC()
	w, err := s.o.Recordings.Create(t.row.ID, recording.Start{
		At: t.row.StartedAt, Cols: size.Cols, Rows: size.Rows, Offset: offset, Title: t.row.Label, Max: t.policy.MaxMB << 20, Secrets: hide,
	})
	if err != nil {
		return err
	}
	if err := s.o.Store.InsertRecording(ctx, t.row); err != nil {
		return errors.Join(err, w.Close(), s.o.Recordings.Remove(t.row.ID))
	}
	t.w = w
	return nil
}

// tapeSecrets are what a recording must not show.
func (s *Service) tapeSecrets(ctx context.Context, id sandbox.ID) ([]recording.Secret, error) {
	set, err := s.secrets(ctx, id)
	if err != nil {
		return nil, err
	}
	out := make([]recording.Secret, len(set.mask))
	for i, h := range set.mask {
		out[i] = recording.Secret{Text: h.text, Shown: h.name}
	}
	return out, nil
}

// dropTape takes back a recording of a terminal that did not open.
func (s *Service) dropTape(t *tape) {
	if t == nil {
		return
	}
	s.forgetTape(t)
	err := errors.Join(t.w.Close(), s.o.Recordings.Remove(t.row.ID), s.o.Store.DeleteRecording(context.WithoutCancel(t.ctx), t.row.ID))
	if err != nil {
		s.o.Log.Error("take a recording back", "recording", t.row.ID, "cause", err.Error())
	}
}

func (s *Service) modeOf(t *tape) recording.Mode {
	s.tapes.mu.Lock()
	defer s.tapes.mu.Unlock()
	return t.policy.Mode
}

func (s *Service) forgetTape(t *tape) {
	t.cancel(nil)
	s.tapes.mu.Lock()
	defer s.tapes.mu.Unlock()
	if key := tapeKey(t.box, t.pty); s.tapes.live[key] == t {
		delete(s.tapes.live, key)
	}
}

// keepTape records until the terminal ends, in the background; nil: nothing.
func (s *Service) keepTape(t *tape, since int64) {
	if t == nil {
		return
	}
	s.feed.send(t.row.WorkspaceID, Change{Kind: "recording", SandboxID: t.row.SandboxID})
	go s.runTape(t, since) // ends with the terminal, the policy or the hub
}

func (s *Service) runTape(t *tape, since int64) {
	defer s.forgetTape(t)
	for pause := tapePause; ; pause = min(2*pause, tapeMostPause) {
		began := time.Now()
		exit, err := s.o.Terminals.Record(t.ctx, t.box, t.pty, since, t.row.Input, sink{t.w, &t.input})
		end, ended := errors.AsType[*term.CloseError](err)
		switch {
		case exit != nil && err == nil:
			s.finishTape(t, recording.EndExited, "", t.w.Exit(time.Now(), exit.Code))
			return
		case errors.Is(err, errTurnedOff):
			s.finishTape(t, recording.EndOff, "recording was turned off", nil)
			return
		case errors.Is(err, recording.ErrFull) && !ended:
			if since = t.w.Next(); s.nextPart(t, since) {
				continue
			}
			return
		case ended && end.Code == term.CloseStopping:
			if err := t.w.Close(); err != nil {
				s.o.Log.Error("close a recording", "recording", t.row.ID, "cause", err.Error())
			}
			return // the next server goes on with it
		case ended && end.Code == term.CloseTooSlow: // out of reach
			since = t.w.Next()
			if time.Since(began) > tapeMostPause {
				pause = tapePause
			}
			select {
			case <-time.After(pause):
			case <-t.ctx.Done():
			}
		case ended:
			s.finishTape(t, recording.EndGone, "", nil)
			return
		default:
			s.brokenTape(t, err)
			return
		}
	}
}

// finishTape ends the present part: a last marker, the row.
func (s *Service) finishTape(t *tape, how, mark string, err error) {
	now := time.Now()
	if how == recording.EndExited {
		err = errors.Join(err, t.w.Close())
	} else {
		err = errors.Join(err, t.w.End(now, mark))
	}
	err = errors.Join(err, s.o.Store.FinishRecording(context.Background(), t.row.ID, now, how, t.w.Size()))
	if err != nil {
		s.o.Log.Error("end a recording", "recording", t.row.ID, "cause", err.Error())
	}
	s.feed.send(t.row.WorkspaceID, Change{Kind: "recording", SandboxID: t.row.SandboxID})
}

// nextPart goes on with a recording that has become as large as one may be, where the policy wants every terminal recorded.
func (s *Service) nextPart(t *tape, offset int64) bool {
	size := agent.Size{}
	size.Cols, size.Rows = t.w.Term()
	if s.modeOf(t) != recording.Always {
		s.finishTape(t, recording.EndLimit, "the recording ends here: it is as large as one may be", nil)
		return false
	}
	s.finishTape(t, recording.EndLimit, "the recording goes on in its next part", nil)
	s.tapes.mu.Lock()
	t.row.Part++
	err := s.beginPart(context.Background(), t, size, offset)
	s.tapes.mu.Unlock()
	if err != nil {
		s.brokenTape(t, err)
		return false
	}
	s.expireRecordings(context.Background()) // a flood fills what a workspace may keep long before the next round
	return true
}

// brokenTape ends a recording that cannot be written. Where the policy wants every terminal recorded, nobody stays at this one:
// their pages come back, and may go on once it can be recorded again.
func (s *Service) brokenTape(t *tape, cause error) {
	s.o.Log.Error("record a terminal", "recording", t.row.ID, "sandbox", t.row.SandboxID, "cause", cause.Error())
	s.finishTape(t, recording.EndFailed, "the recording broke off", nil)
	e := audit.Event{
		WorkspaceID: t.row.WorkspaceID, ActorKind: auth.System, Actor: "system", SandboxID: t.row.SandboxID, Action: "recording.break",
		Target: t.pty, Outcome: audit.Failed, Detail: t.row.ID + " cannot be written",
	}
	if err := s.o.Audit.Note(context.Background(), e); err != nil {
		s.o.Log.Error("note a broken recording", "recording", t.row.ID, "cause", err.Error())
	}
	if s.modeOf(t) == recording.Always {
		s.forgetTape(t) // before they come back
		s.o.Terminals.Disconnect(t.box, t.pty, &term.CloseError{Code: term.CloseTooSlow, Reason: "This terminal must be recorded, and its recording broke off."})
	}
}

// liveTape gives the recording of a terminal that goes on, "" for none.
func (s *Service) liveTape(box sandbox.ID, pty string) string {
	s.tapes.mu.Lock()
	defer s.tapes.mu.Unlock()
	if t := s.tapes.live[tapeKey(box, pty)]; t != nil {
		return t.row.ID
	}
	return ""
}

// liveSizes gives the bytes of the recordings that go on, by id.
func (s *Service) liveSizes() map[string]int64 {
	s.tapes.mu.Lock()
	defer s.tapes.mu.Unlock()
	out := map[string]int64{}
	for _, t := range s.tapes.live {
		out[t.row.ID] = t.w.Size()
	}
	return out
}

// ResumeRecordings goes on with what the last server was recording, each exactly where it was, and clears up what has no record.
// It is called once, when sandboxes have been taken up and before anybody is served.
func (s *Service) ResumeRecordings(ctx context.Context) error {
	if s.o.Recordings == nil {
		return nil
	}
	open, err := s.o.Store.OpenRecordings(ctx)
	if err != nil {
		return err
	}
	for _, row := range open {
		if err := s.resumeTape(ctx, row); err != nil {
			s.o.Log.Error("resume a recording", "recording", row.ID, "cause", err.Error())
			if err := s.closeRow(ctx, row, recording.EndFailed); err != nil {
				return err
			}
		}
	}
	return s.dropStrayRecordings(ctx)
}

func (s *Service) resumeTape(ctx context.Context, row recording.Recording) error {
	box, err := s.o.Sandboxes.Record(ctx, sandbox.ID(row.SandboxID))
	if err != nil && !fault.Is(err, fault.NotFound) {
		return err
	}
	switch box.Status {
	case sandbox.Running, sandbox.Suspending, sandbox.Suspended, sandbox.Resuming:
	default:
		return s.closeRow(ctx, row, recording.EndGone)
	}
	p, err := s.o.Store.RecordingPolicy(ctx, row.WorkspaceID)
	if err != nil {
		return err
	}
	hide, err := s.tapeSecrets(ctx, box.ID)
	if err != nil {
		return err
	}
	w, err := s.o.Recordings.Resume(row.ID, recording.Start{At: row.StartedAt, Max: p.MaxMB << 20, Secrets: hide})
	if err != nil {
		return err
	}
	t := &tape{pty: row.PTY, box: box.ID, policy: p, row: row, w: w}
	t.input.Store(row.Input && p.Input)
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	s.tapes.mu.Lock()
	if s.tapes.live == nil {
		s.tapes.live = map[string]*tape{}
	}
	s.tapes.live[tapeKey(box.ID, row.PTY)] = t
	s.tapes.mu.Unlock()
	s.keepTape(t, w.Next())
	return nil
}

// closeRow ends the record of a recording whose terminal is no more; it ended when its file was written last.
func (s *Service) closeRow(ctx context.Context, row recording.Recording, how string) error {
	size, at, err := s.o.Recordings.FileSize(row.ID)
	if err != nil {
		size, at = row.Bytes, s.o.Now()
	}
	return s.o.Store.FinishRecording(ctx, row.ID, at, how, size)
}

func (s *Service) dropStrayRecordings(ctx context.Context) error {
	files, err := s.o.Recordings.IDs()
	if err != nil {
		return err
	}
	rows, err := s.o.Store.RecordingIDs(ctx)
	if err != nil {
		return err
	}
	known := map[string]bool{}
	for _, id := range rows {
		known[id] = true
	}
	for _, id := range files {
		if !known[id] {
			err = errors.Join(err, s.o.Recordings.Remove(id))
		}
	}
	if err != nil {
		return fmt.Errorf("clear up recordings: %w", err)
	}
	return nil
}
