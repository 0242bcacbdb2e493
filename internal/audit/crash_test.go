package audit_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"sandgate/internal/audit"
)

// crashDir names the data directory to a process of writers; without it the test is the one that starts them.
const crashDir = "SANDGATE_TEST_CRASH_DIR"

const writers = 50

// Fifty writers, killed again and again in the middle: the record holds, and all that a writer was told to be on record is
// there. make soak has two hundred events of each, and kills more often.
func TestWritersAreKilled(t *testing.T) {
	if dir := os.Getenv(crashDir); dir != "" {
		write(t, dir)
		return
	}
	dir := t.TempDir()
	acked := make([]int, writers)
	for round := range kills + 1 {
		killAt := (round + 1) * writers * eachWrites / (kills + 1)
		if round == kills {
			killAt = -1 // to the end
		}
		writersLife(t, dir, acked, killAt)
	}
	l := open(t, dir)
	_, err := l.CloseOpen(context.Background())
	require.NoError(t, err)
	v, err := l.Verify(context.Background())
	require.NoError(t, err)
	require.True(t, v.Holds(), v.Contrary)

	done, unknown := map[string]int{}, 0
	for f := (audit.Filter{Oldest: true, Limit: 1000}); ; {
		page, err := l.List(context.Background(), f)
		require.NoError(t, err)
		for _, e := range page {
			f.AfterSeq = e.Seq
			switch e.Outcome {
			case audit.OK:
				done[e.Target]++
			case audit.Unknown:
				unknown++
			default:
				require.Fail(t, "an intent without outcome", "%+v", e)
			}
		}
		if len(page) == 0 {
			break
		}
	}
	for w, n := range acked {
		require.Equal(t, eachWrites, n, "writer %d", w)
		for i := range n {
			require.Positive(t, done[fmt.Sprintf("writer %d event %d", w, i)], "writer %d was told that event %d is on record", w, i)
		}
	}
	twice := 0
	for _, n := range done {
		twice += n - 1
	}
	require.LessOrEqual(t, twice+unknown, kills*writers, "only what was under way when a process ended is there again or unknown")
	require.Len(t, done, writers*eachWrites)
}

// writersLife runs one process of writers, and kills it when so many events in all are on record.
func writersLife(t *testing.T, dir string, acked []int, killAt int) {
	t.Helper()
	begin := make([]string, len(acked))
	for i, n := range acked {
		begin[i] = fmt.Sprint(n)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestWritersAreKilled$") //nolint:gosec // this very test
	cmd.Env = append(os.Environ(), crashDir+"="+dir, "SANDGATE_TEST_BEGIN="+strings.Join(begin, ","))
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	total := 0
	for _, n := range acked {
		total += n
	}
	for in := bufio.NewScanner(out); in.Scan(); {
		var w, n int
		if _, err := fmt.Sscanf(in.Text(), "recorded %d %d", &w, &n); err != nil {
			continue
		}
		acked[w] = n + 1
		if total++; total == killAt {
			require.NoError(t, cmd.Process.Kill())
		}
	}
	err = cmd.Wait()
	if killAt < 0 {
		require.NoError(t, err)
	}
}

// write is the process of writers. Each says what is on record, and goes on where it was before.
func write(t *testing.T, dir string) {
	l := open(t, dir)
	_, err := l.CloseOpen(context.Background())
	require.NoError(t, err)
	var all sync.WaitGroup
	for w, from := range strings.Split(os.Getenv("SANDGATE_TEST_BEGIN"), ",") {
		var n int
		_, err := fmt.Sscan(from, &n)
		require.NoError(t, err)
		all.Go(func() {
			for i := n; i < eachWrites; i++ {
				e, err := l.Begin(context.Background(), audit.Event{Action: "command.run", Target: fmt.Sprintf("writer %d event %d", w, i)})
				if err != nil {
					panic(err)
				}
				e.EndWith(nil, "exit 0", audit.Facts{}, &audit.Output{Stdout: []byte("x"), StdoutTotal: 1})
				fmt.Printf("recorded %d %d\n", w, i) //nolint:forbidigo // to the parent
			}
		})
	}
	all.Wait()
}
