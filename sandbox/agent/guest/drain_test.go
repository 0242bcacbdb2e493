package guest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"sandgate/sandbox/agent"
)

// What a command has written before it ended is answered, however late this program gets to read it.
func TestOutputIsWholeHoweverLateItIsRead(t *testing.T) {
	s := New(Config{Workdir: t.TempDir(), Spill: t.TempDir()})
	t.Cleanup(func() { _ = s.Close() })
	for i := range 2 {
		c, err := s.runCommand(agent.CommandSpec{ID: fmt.Sprintf("cmd%d", time.Now().UnixNano()), Command: "sleep 60 & sleep 0.2; echo out; echo err >&2"})
		require.NoError(t, err)
		c.mu.Lock() // nobody gets to take or to settle anything
		require.Eventually(t, c.reaped.Load, time.Minute, time.Millisecond)
		<-time.After(agent.DrainAfterExit + 50*time.Millisecond)
		c.mu.Unlock()
		require.Eventually(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.exit != nil }, time.Minute, time.Millisecond)
		c.mu.Lock()
		require.Equal(t, "out\n", string(c.logs[stdout].mem), i)
		require.Equal(t, "err\n", string(c.logs[stderr].mem), i)
		c.mu.Unlock()
		s.killTree(&c.job)
	}
}

// A reader that is slow while a command ends gets the end of its output all the same.
func TestASlowReaderGetsTheEndToo(t *testing.T) {
	s := New(Config{Workdir: t.TempDir(), Spill: t.TempDir()})
	t.Cleanup(func() { _ = s.Close() })
	const rest = 60_000 // less than a pipe holds: the program ends though nobody reads
	c, err := s.runCommand(agent.CommandSpec{
		ID: fmt.Sprintf("cmd%d", time.Now().UnixNano()), Command: fmt.Sprintf("sleep 60 & sleep 0.2; printf x; sleep 0.2; head -c %d /dev/zero", rest),
	})
	require.NoError(t, err)
	slow := &reader{pos: [2]int64{-readerWindow, -readerWindow}} // the first byte is one too many
	c.mu.Lock()
	c.readers[slow] = struct{}{}
	c.mu.Unlock()
	require.Eventually(t, c.reaped.Load, time.Minute, time.Millisecond)
	<-time.After(agent.DrainAfterExit + 100*time.Millisecond)
	c.mu.Lock()
	require.EqualValues(t, 1, c.logs[stdout].size)
	require.Nil(t, c.exit)
	slow.pos[stdout] = 0
	c.wakeLocked()
	c.mu.Unlock()
	require.Eventually(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.exit != nil }, time.Minute, time.Millisecond)
	c.mu.Lock()
	require.EqualValues(t, 1+rest, c.logs[stdout].size)
	c.mu.Unlock()
	s.killTree(&c.job)
}
