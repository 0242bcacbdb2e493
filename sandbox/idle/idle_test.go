package idle_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox/idle"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

func TestDecide(t *testing.T) {
	const timeout = 100 * time.Second
	for name, c := range map[string]struct {
		now  int
		s    idle.State
		want idle.Verdict
	}{
		"nothing is due":               {10, idle.State{Deadline: at(100)}, idle.Verdict{}},
		"half of the time is over":     {50, idle.State{Deadline: at(100)}, idle.Verdict{Act: idle.Warn, Deadline: at(100)}},
		"the time is over":             {100, idle.State{Deadline: at(100)}, idle.Verdict{Act: idle.End}},
		"used a moment ago":            {100, idle.State{Deadline: at(100), LastUse: at(99)}, idle.Verdict{Act: idle.Renew, Deadline: at(199)}},
		"used long ago":                {100, idle.State{Deadline: at(100), LastUse: at(0)}, idle.Verdict{Act: idle.End}},
		"in use":                       {300, idle.State{Deadline: at(100), Busy: []string{idle.Command}}, idle.Verdict{Act: idle.Renew, Deadline: at(400)}},
		"kept alive for longer":        {100, idle.State{Deadline: at(1000), LastUse: at(0)}, idle.Verdict{}},
		"its life is over, in use":     {500, idle.State{Deadline: at(900), Expires: at(500), Busy: []string{idle.CPU}}, idle.Verdict{Act: idle.Expire}},
		"its life is nearly over":      {450, idle.State{Deadline: at(900), Expires: at(500)}, idle.Verdict{Act: idle.Warn, Deadline: at(500), Life: true}},
		"idle before its life is over": {95, idle.State{Deadline: at(100), Expires: at(101)}, idle.Verdict{Act: idle.Warn, Deadline: at(100)}},
	} {
		c.s.Timeout = timeout
		require.Equal(t, c.want, idle.Decide(at(c.now), c.s), name)
	}
}

func TestJumps(t *testing.T) {
	var j idle.Jumps
	require.Zero(t, j.See(at(0), 0), "the first reading says nothing")
	require.Zero(t, j.See(at(5), 5*time.Second))
	require.Equal(t, time.Hour, j.See(at(3610), 10*time.Second), "set forward, or the host slept")
	require.Zero(t, j.See(at(3620), 20*time.Second))
	require.Equal(t, -time.Hour, j.See(at(30), 30*time.Second), "set back")
	jump := j.See(at(3640), 40*time.Second)
	j.Undo(jump)
	require.Equal(t, jump, j.See(at(3641), 41*time.Second), "told again until somebody acted on it")
	drift := 0
	for i := range 100 { // small steps in one direction are a jump at some time
		if j.See(at(3641+2*i), time.Duration(41+i)*time.Second) != 0 {
			drift++
		}
	}
	require.Positive(t, drift)
}

// machine does with a sandbox what the product does with rows and a sweep.
type machine struct {
	wall   time.Time
	passed time.Duration
	jumps  idle.Jumps
	s      idle.State
	ended  idle.Act
}

func (m *machine) sweep() {
	if by := m.jumps.See(m.wall, m.passed); by != 0 {
		m.s.Deadline = m.s.Deadline.Add(by)
		if !m.s.Expires.IsZero() {
			m.s.Expires = m.s.Expires.Add(by)
		}
		if !m.s.LastUse.IsZero() {
			m.s.LastUse = m.s.LastUse.Add(by)
		}
	}
	switch v := idle.Decide(m.wall, m.s); v.Act {
	case idle.Renew:
		m.s.Deadline = v.Deadline
	case idle.End, idle.Expire:
		m.ended = v.Act
	case idle.Nothing, idle.Warn:
	}
}

// restart is a start of the server after it was away.
func (m *machine) restart() {
	m.jumps, m.s.LastUse = idle.Jumps{}, time.Time{}
	if grace := m.wall.Add(idle.Grace(m.s.Timeout)); grace.After(m.s.Deadline) {
		m.s.Deadline = grace
	}
}

// A thousand random stories, each told to the machine and to a model that knows no deadlines: it counts down what is left.
// Nothing that is in use, or was used within its time, is ended; nothing unused lives on; jumps of the clock change neither.
func TestRandomStoriesAgainstAModel(t *testing.T) {
	for seed := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, 1))
		timeout := time.Duration(1+r.IntN(200)) * time.Second
		m := &machine{wall: start, s: idle.State{Timeout: timeout, Deadline: start.Add(timeout)}}
		left, life := timeout, time.Duration(-1)
		if r.IntN(3) == 0 {
			life = time.Duration(1+r.IntN(1000)) * time.Second
			m.s.Expires = start.Add(life)
		}
		m.sweep()
		pass := func(d time.Duration) {
			m.wall, m.passed = m.wall.Add(d), m.passed+d
			if life >= 0 {
				life -= d
			}
			if left -= d; len(m.s.Busy) > 0 {
				left = max(left, timeout)
			}
		}
		use := func() { m.s.LastUse = m.wall; left = max(left, timeout) }
		for step := 0; step < 2000 && m.ended == 0; step++ {
			switch n := r.IntN(1000); {
			case n < 5:
				use()
			case n < 8 && len(m.s.Busy) == 0:
				use()
				m.s.Busy = []string{idle.Command}
			case n < 60 && len(m.s.Busy) > 0:
				m.s.Busy = nil
				use()
			case n < 62:
				d := time.Duration(1+r.IntN(500)) * time.Second
				m.s.Deadline, left = maxTime(m.s.Deadline, m.wall.Add(d)), max(left, d)
			case n < 65: // the clock is set, or the host slept
				if by := time.Duration(r.IntN(20_000)-10_000) * time.Second; by.Abs() > 2*time.Second { // less is no jump yet
					m.wall = m.wall.Add(by)
				}
			case n < 68: // the server is away; commands inside go on
				m.sweep()
				if m.ended != 0 {
					break
				}
				pass(time.Duration(r.IntN(300)) * time.Second)
				m.restart()
				left = max(left, idle.Grace(timeout))
			}
			if m.ended != 0 {
				break
			}
			pass(time.Second)
			m.sweep()
			switch m.ended {
			case idle.End:
				require.Empty(t, m.s.Busy, "story %d: ended in use", seed)
				require.LessOrEqual(t, left, time.Duration(0), "story %d: ended with time left", seed)
			case idle.Expire:
				require.True(t, life <= 0 && !m.s.Expires.IsZero(), "story %d: its life was not over", seed)
			default:
				require.Greater(t, left, -2*time.Second, "story %d: unused and alive", seed)
				require.True(t, m.s.Expires.IsZero() || life > 0, "story %d: alive beyond its life", seed)
			}
		}
	}
}

func maxTime(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
