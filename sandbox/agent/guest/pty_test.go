package guest_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// screen is a terminal that is attached and remembers what it was told.
type screen struct {
	t  testing.TB
	id string
	agent.Attachment

	mu      sync.Mutex
	first   int64 // offset of the first byte seen
	next    int64
	got     []byte
	sizes   []agent.Size
	exit    *agent.Exit
	refused int
	heard   chan struct{} // something came
	over    chan struct{}
	err     error // once over
}

func openPTY(t testing.TB, client *agent.Client) *screen {
	t.Helper()
	id := "pty" + newID()[3:]
	// A home of its own: what the machine's user starts in shells is no part of the test.
	home := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(home, ".bashrc"), []byte("PS1='READY> '\n"), 0o600))
	p, err := client.OpenPTY(within(t, 10*time.Second), agent.PTYSpec{ID: id, Cols: 80, Rows: 24, Env: map[string]string{"HOME": home}})
	require.NoError(t, err)
	require.Equal(t, "running", p.Status)
	s := attach(t, client, id, -1)
	s.wait("READY> ") // before that the shell has its terminal in another mode
	return s
}

func attach(t testing.TB, client *agent.Client, id string, since int64) *screen {
	t.Helper()
	a, err := client.Attach(context.Background(), id, since)
	require.NoError(t, err)
	s := &screen{t: t, id: id, Attachment: a, first: -1, heard: make(chan struct{}, 1), over: make(chan struct{})}
	t.Cleanup(func() { _ = a.Close(); <-s.over })
	go func() {
		defer close(s.over)
		for {
			ev, err := a.Next()
			if err != nil {
				s.err = err
				return
			}
			s.mu.Lock()
			switch {
			case ev.Output != nil:
				if s.first < 0 {
					s.first, s.next = ev.Offset, ev.Offset
				}
				if ev.Offset != s.next {
					t.Errorf("output at %d, expected %d", ev.Offset, s.next)
				}
				s.next = ev.Offset + int64(len(ev.Output))
				s.got = append(s.got, ev.Output...)
			case ev.Size != nil:
				s.sizes = append(s.sizes, *ev.Size)
			case ev.Exit != nil:
				s.exit = ev.Exit
			case ev.Refused:
				s.refused++
			}
			s.mu.Unlock()
			select {
			case s.heard <- struct{}{}:
			default:
			}
		}
	}()
	return s
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.got)
}

func (s *screen) wait(want string) {
	s.t.Helper()
	for end := time.Now().Add(15 * time.Second); !strings.Contains(s.text(), want); {
		require.True(s.t, time.Now().Before(end), "%q is not in %q", want, s.text())
		select {
		case <-s.heard:
		case <-s.over:
			require.Contains(s.t, s.text(), want)
		case <-time.After(time.Until(end)):
		}
	}
}

func (s *screen) typeLine(format string, args ...any) {
	s.t.Helper()
	require.NoError(s.t, s.Input([]byte(fmt.Sprintf(format, args...)+"\n")))
}

func TestTerminalIsOne(t *testing.T) {
	client, work := newAgent(t)
	s := openPTY(t, client)
	s.typeLine("echo $((6*7)); tty; stty size; : </dev/tty && echo dev''tty; echo $TERM $COLORTERM; pwd")
	s.wait("42\r\n/dev/pts/")
	s.wait("24 80\r\ndevtty\r\nxterm-256color truecolor\r\n" + work)
	require.NoError(t, s.Resize(101, 31))
	s.typeLine("stty size")
	s.wait("31 101")
	require.NoError(t, s.Resize(-1, 70000))
	s.typeLine("stty size")
	s.wait("300 2\r\n")
	require.Equal(t, []agent.Size{{Cols: 80, Rows: 24}, {Cols: 101, Rows: 31}, {Cols: 2, Rows: 300}}, s.sizes)
}

func TestTerminalTellsTheSizeToTraps(t *testing.T) {
	client, _ := newAgent(t)
	s := openPTY(t, client)
	s.typeLine("trap 'echo win''ch; stty size' WINCH; while :; do echo lo''op; sleep .1; done")
	s.wait("loop\r\n")
	require.NoError(t, s.Resize(101, 31))
	s.wait("winch\r\n31 101")
}

func TestTerminalInterrupts(t *testing.T) {
	client, _ := newAgent(t)
	s := openPTY(t, client)
	for i, stop := range []func() error{
		func() error { return s.Input([]byte{3}) }, func() error { return s.Signal("INT") }, func() error { return s.Signal("TERM") },
	} {
		s.typeLine("sleep 87654.%d", i)
		running := func() bool { return len(alive(fmt.Sprintf("sleep\x0087654.%d", i))) == 1 }
		require.Eventually(t, running, 60*time.Second, 2*time.Millisecond)
		require.NoError(t, stop())
		s.typeLine("echo af''ter%d", i)
		s.wait(fmt.Sprintf("after%d", i))
	}
	require.Equal(t, fault.Invalid, fault.KindOf(s.Signal("SEGV")))
}

func TestTerminalPassesAllBytes(t *testing.T) {
	client, _ := newAgent(t)
	s := openPTY(t, client)
	s.typeLine("stty raw -echo; echo RA''W; head -c 2560; echo; echo en''d; stty sane")
	s.wait("RAW")
	var all []byte
	for i := range 2560 {
		all = append(all, byte(i))
	}
	require.NoError(t, s.Input(all))
	s.wait("end")
	require.True(t, bytes.Contains([]byte(s.text()), all))
}

func TestTerminalRefusesInputNobodyReads(t *testing.T) {
	client, _ := newAgent(t)
	s := openPTY(t, client)
	s.typeLine("stty raw -echo; echo RA''W; sleep 1000; stty sane; echo ba''ck")
	s.wait("RAW")
	for range 24 {
		require.NoError(t, s.Input(bytes.Repeat([]byte("x"), 64<<10)))
	}
	require.Eventually(t, func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.refused > 0 }, 60*time.Second, time.Millisecond)
	require.NoError(t, s.Resize(100, 30))
	// Another terminal is untouched, and the stuck one can be freed.
	other := openPTY(t, client)
	other.typeLine("echo al''ive")
	other.wait("alive")
	// Again and again: the first may come before sleep is the terminal's foreground.
	require.Eventually(t, func() bool { return s.Signal("KILL") == nil && strings.Contains(s.text(), "back") }, 60*time.Second, 20*time.Millisecond)
	require.Equal(t, fault.TooLarge, fault.KindOf(s.Input(make([]byte, agent.MaxInput+1))))
}

func TestTerminalEndsAfterItsOutput(t *testing.T) {
	client, _ := newAgent(t)
	s := openPTY(t, client)
	s.typeLine("(sleep 30 &); exec sh -c 'seq 1 20000; echo TA''IL; exit 7'")
	<-s.over
	require.True(t, strings.HasSuffix(s.text(), "19999\r\n20000\r\nTAIL\r\n"))
	require.NotNil(t, s.exit)
	require.Equal(t, 7, s.exit.Code)
	// It can still be looked at, until it is closed.
	again := attach(t, client, s.id, 0)
	<-again.over
	require.Equal(t, s.text(), again.text())
	ctx := within(t, 10*time.Second)
	require.NoError(t, client.ClosePTY(ctx, s.id))
	_, err := client.PTY(ctx, s.id)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}

func TestTerminalRunsOnWithNobodyAttached(t *testing.T) {
	client, _ := newAgent(t)
	s := openPTY(t, client)
	const printed = 7_088_895 // bytes of the numbers with their line ends
	s.typeLine("seq 1 900000; echo DO''NE")
	s.wait("\r\n100\r\n")
	require.NoError(t, s.Close())
	require.Eventually(t, func() bool {
		p, err := client.PTY(within(t, 5*time.Second), s.id)
		return err == nil && p.Next > printed && p.Next-p.Oldest == agent.DefaultRing
	}, 2*time.Minute, 5*time.Millisecond, "a ring that nobody reads overflows to the end")
	again := attach(t, client, s.id, 10)
	again.wait("900000\r\nDONE\r\n")
	require.Greater(t, again.first, int64(10), "the offset shows that something is gone")
}

func TestReattachSeesEveryByteOnce(t *testing.T) {
	client, _ := newAgent(t)
	s := openPTY(t, client)
	s.typeLine("stty -echo; echo STA''RT; for i in $(seq 1 3000); do echo n$i; done; echo EN''D")
	s.wait("START\r\n")
	var all []byte
	cur := s
	next := int64(0)
	for n := 0; ; n++ {
		require.Less(t, n, 2000)
		require.NoError(t, cur.Close())
		<-cur.over
		all = append(all, cur.got...)
		if bytes.Contains(all, []byte("END\r\n")) {
			break
		}
		if cur.first >= 0 {
			next = cur.next
		}
		cur = attach(t, client, s.id, next)
		require.Eventually(t, func() bool { return cur.text() != "" }, 60*time.Second, time.Millisecond)
	}
	_, after, _ := bytes.Cut(all, []byte("START\r\n"))
	var want strings.Builder
	for i := 1; i <= 3000; i++ {
		fmt.Fprintf(&want, "n%d\r\n", i)
	}
	require.True(t, strings.HasPrefix(string(after), want.String()+"END\r\n"))
}

func TestATerminalIsRenamed(t *testing.T) {
	client, _ := newAgent(t)
	s := openPTY(t, client)
	ctx := within(t, time.Minute)
	got, err := client.RenamePTY(ctx, s.id, "build ☃")
	require.NoError(t, err)
	require.Equal(t, "build ☃", got.Name)
	got, err = client.PTY(ctx, s.id)
	require.NoError(t, err)
	require.Equal(t, "build ☃", got.Name)
	for _, bad := range []string{"", strings.Repeat("x", agent.MaxPTYName+1)} {
		_, err = client.RenamePTY(ctx, s.id, bad)
		require.Equal(t, fault.Invalid, fault.KindOf(err))
	}
	_, err = client.RenamePTY(ctx, "ptyzzzzzzzzzzzzzzzzzzzz", "x")
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}

func TestClosePTYEndsStubbornJobs(t *testing.T) {
	client, _ := newAgent(t)
	s := openPTY(t, client)
	mark := "98765.4"
	s.typeLine("trap '' HUP TERM; sleep %s & sleep %s", mark, mark)
	require.Eventually(t, func() bool { return len(alive("sleep\x00"+mark)) == 2 }, 60*time.Second, 5*time.Millisecond)
	require.NoError(t, client.ClosePTY(within(t, 10*time.Second), s.id))
	require.Eventually(t, func() bool { return len(alive("sleep\x00"+mark)) == 0 }, 60*time.Second, 5*time.Millisecond)
	_, err := client.Attach(within(t, 5*time.Second), s.id, -1)
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}

func TestAttachmentEndsWithBridge(t *testing.T) {
	client, _ := newAgent(t)
	s := openPTY(t, client)
	require.NoError(t, client.Close())
	<-s.over
	require.ErrorIs(t, s.err, agent.ErrBridge)
	again := attach(t, client, s.id, -1)
	again.wait("READY> ")
}
