package guest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// jumps is a clock that a test moves, with timers that fire when it says so.
type jumps struct {
	at    time.Time
	asked chan time.Duration
	fire  chan time.Time
}

func (j *jumps) timer(d time.Duration) *time.Timer {
	j.asked <- d
	t := time.NewTimer(time.Hour)
	t.C = j.fire
	return t
}

func TestALimitCountsRunningTimeOnly(t *testing.T) {
	j := &jumps{at: time.Unix(1000, 0), asked: make(chan time.Duration), fire: make(chan time.Time)}
	expired, stop := countRunning(12*time.Second, 5*time.Second, 3*time.Second, func() time.Time { return j.at }, j.timer)
	defer stop()
	pass := func(want, took time.Duration) {
		require.Equal(t, want, <-j.asked)
		j.at = j.at.Add(took)
		j.fire <- j.at
	}
	pass(5*time.Second, 5*time.Second)
	pass(5*time.Second, 24*time.Hour)  // suspended meanwhile
	pass(5*time.Second, 6*time.Second) // a little late
	pass(1*time.Second, 1*time.Second)
	<-expired
	again, stopAgain := countRunning(time.Minute, 5*time.Second, 3*time.Second, func() time.Time { return j.at }, j.timer)
	pass(5*time.Second, 8*time.Second)
	require.Equal(t, 5*time.Second, <-j.asked)
	stopAgain()
	select {
	case <-again:
		t.Fatal("stopped timers do not expire")
	default:
	}
}
