package image

import (
	"bytes"
	"math"
	"sync"
	"time"
)

// A step of a build: where it starts in percent, and how long it usually takes, so that the bar moves meanwhile.
type step struct {
	phase   string
	from    int
	typical time.Duration
	mark    string // in the builder's output: what shows that this step began
}

var steps = []step{
	{"fetching package lists", 1, 4 * time.Second, "running apt-get update"},
	{"downloading packages", 8, 8 * time.Second, "downloading packages"},
	{"extracting packages", 22, 5 * time.Second, "extracting archives"},
	{"installing the essential packages", 30, 8 * time.Second, "installing essential packages"},
	{"installing packages", 45, 15 * time.Second, "installing remaining packages"},
	{"cleaning up", 70, time.Second, "cleaning package lists"},
	{"installing Python packages", 72, 12 * time.Second, ""},
	{"finishing", 92, time.Second, ""},
	{"shifting owners", 94, 2 * time.Second, ""},
	{"done", 100, time.Second, ""},
}

// meter turns the builder's output and the time into a percentage that never goes back.
type meter struct {
	report func(phase string, percent int)
	quit   chan struct{}
	done   chan struct{}

	mu    sync.Mutex
	at    int // index into steps
	since time.Time
	last  int
	line  []byte
}

func newMeter(report func(string, int)) *meter {
	m := &meter{report: report, quit: make(chan struct{}), done: make(chan struct{}), since: time.Now(), last: -1}
	go func() {
		defer close(m.done)
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-m.quit:
				return
			case <-tick.C:
				m.mu.Lock()
				m.tell()
				m.mu.Unlock()
			}
		}
	}()
	return m
}

func (m *meter) stop() {
	close(m.quit)
	<-m.done
}

// tell reports if the percentage moved; the caller holds mu.
func (m *meter) tell() {
	s := steps[m.at]
	to := 100
	if m.at+1 < len(steps) {
		to = steps[m.at+1].from
	}
	// Approaches the next step's start and never reaches it.
	share := 1 - math.Exp(-float64(time.Since(m.since))/float64(s.typical))
	if p := s.from + int(share*float64(to-s.from)); p > m.last {
		m.last = p
		m.report(s.phase, p)
	}
}

func (m *meter) phase(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i := m.at; i < len(steps); i++ {
		if steps[i].phase == name {
			m.at, m.since = i, time.Now()
			m.tell()
			return
		}
	}
}

// Write watches the builder's output for the marks of its steps.
func (m *meter) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, b := range p {
		if b != '\n' {
			if len(m.line) < 200 {
				m.line = append(m.line, b)
			}
			continue
		}
		for i := m.at + 1; i < len(steps); i++ {
			if steps[i].mark != "" && bytes.HasPrefix(m.line, []byte("I: "+steps[i].mark)) {
				m.at, m.since = i, time.Now()
				m.tell()
				break
			}
		}
		m.line = m.line[:0]
	}
	return len(p), nil
}
