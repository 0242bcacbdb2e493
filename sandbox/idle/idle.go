// Package idle owns the rule by which a sandbox lives and ends by the clock: what is known of one goes in, what is to be
// done comes out. It must never touch a sandbox, a database or a clock of its own, so that all of it can be tried.
package idle

import (
	"slices"
	"time"
)

// Reasons why something is alive, in the words of the API.
const (
	Command   = "command"   // one runs, in the foreground or the background
	Transfer  = "transfer"  // a file call or an archive is under way
	Call      = "call"      // any other call that counts
	Terminal  = "terminal"  // a program other than the waiting shell runs in a terminal
	CPU       = "cpu"       // something inside computes, and keep_while_busy is on
	Keepalive = "keepalive" // somebody asked for more time
	Approval  = "approval"  // a request waits for a decision, or its yes for its use
)

// Bounds of what callers may ask for.
const (
	DefaultTimeout  = 15 * time.Minute
	DefaultLifetime = 24 * time.Hour
	MinTimeout      = time.Second
	MaxTimeout      = 30 * 24 * time.Hour
)

// BusyCores is the use of the processor, in cores, from which on something inside is at work. A sandbox in which nothing
// happens takes 0.0002 cores, one with a loop that prints the date each second 0.04.
const BusyCores = 0.1

// What is told before it happens, and how long after an interruption nothing happens.
const (
	warning = time.Minute
	grace   = time.Minute
)

// Warning is how long before the end people are told: a minute, half of the time where that is shorter.
func Warning(timeout time.Duration) time.Duration { return min(warning, timeout/2) }

// Grace is how long a sandbox has at least after the server was away: nobody could use it meanwhile.
func Grace(timeout time.Duration) time.Duration { return min(grace, timeout) }

// State is what is known of a running sandbox.
type State struct {
	Timeout  time.Duration
	LastUse  time.Time // the last use that this process saw; zero: none
	Deadline time.Time // when it ends unless it is used; the durable one
	Expires  time.Time // when it ends in any case; zero: never
	Busy     []string  // why it is in use right now
}

// Act is what is to be done.
type Act int

// The acts.
const (
	Nothing Act = iota
	Warn        // tell people that it is about to end
	Renew       // move the deadline to Verdict.Deadline
	End         // nobody used it in time
	Expire      // its life is over
)

// Verdict is an act with what belongs to it.
type Verdict struct {
	Act      Act
	Deadline time.Time // of Renew; of Warn the moment that is meant
	Life     bool      // of Warn: Expires is meant, which no use moves
}

// Decide judges one sandbox at a moment. What is busy now, and what was used within the timeout, is never ended for being
// idle; a life that is over ends whatever goes on.
func Decide(now time.Time, s State) Verdict {
	if !s.Expires.IsZero() && !now.Before(s.Expires) {
		return Verdict{Act: Expire}
	}
	now = now.Round(0)
	deadline := s.Deadline
	if !s.LastUse.IsZero() {
		deadline = latest(deadline, s.LastUse.Add(s.Timeout))
	}
	if len(s.Busy) > 0 {
		deadline = latest(deadline, now.Add(s.Timeout))
	}
	switch {
	case deadline.After(s.Deadline):
		return Verdict{Act: Renew, Deadline: deadline}
	case !now.Before(deadline):
		return Verdict{Act: End}
	case !s.Expires.IsZero() && !now.Before(s.Expires.Add(-warning)) && !s.Expires.After(deadline):
		return Verdict{Act: Warn, Deadline: s.Expires, Life: true}
	case !now.Before(deadline.Add(-Warning(s.Timeout))):
		return Verdict{Act: Warn, Deadline: deadline}
	}
	return Verdict{}
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// jumpLimit is how far two clocks may drift apart between two looks before it counts as a jump.
const jumpLimit = 2 * time.Second

// Clock tells the time twice: as people read it, and as it passes. The second does not run while the host is suspended and
// is set by nobody.
type Clock func() (wall time.Time, passed time.Duration)

// SystemClock is the host's.
func SystemClock() Clock {
	start := time.Now()
	return func() (time.Time, time.Duration) {
		now := time.Now()
		return now.Round(0), now.Sub(start)
	}
}

// Jumps tells by how much the wall clock moved other than time passed. Only one goroutine may use it.
type Jumps struct {
	wall   time.Time
	passed time.Duration
}

// See takes a reading and gives the jump since the one before, 0 where there is none. Deadlines have to be moved by it:
// only time that passed while the host ran counts.
func (j *Jumps) See(wall time.Time, passed time.Duration) time.Duration {
	first := j.wall.IsZero()
	jump := wall.Sub(j.wall) - (passed - j.passed)
	if first || jump.Abs() >= jumpLimit {
		j.wall, j.passed = wall, passed
	}
	if first || jump.Abs() < jumpLimit {
		// The reading before stays: many small steps in one direction become a jump.
		return 0
	}
	return jump
}

// Undo makes the next See report a jump again that nobody could act on.
func (j *Jumps) Undo(by time.Duration) { j.wall = j.wall.Add(-by) }

// Sorted gives reasons without repeats, in one order.
func Sorted(reasons []string) []string {
	out := slices.Clone(reasons)
	slices.Sort(out)
	return slices.Compact(out)
}
