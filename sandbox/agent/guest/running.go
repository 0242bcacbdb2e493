package guest

import "time"

// A limit on a command counts the time that the sandbox runs: while it is suspended nobody could have made progress. The
// clock inside goes on all the same, so time is counted in steps, and a step that took far longer than it should was
// interrupted: it does not count.
const (
	runningStep = 5 * time.Second
	runningSlip = 3 * time.Second // a busy machine is late by less
)

// runningTimer gives a channel that is closed after d of running time; stop frees it.
func runningTimer(d time.Duration) (expired <-chan struct{}, stop func()) {
	return countRunning(d, runningStep, runningSlip, time.Now, time.NewTimer)
}

func countRunning(left, step, slip time.Duration, now func() time.Time, timer func(time.Duration) *time.Timer) (<-chan struct{}, func()) {
	expired, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		for left > 0 {
			piece := min(left, step)
			before := now()
			t := timer(piece)
			select {
			case <-t.C:
			case <-stopped:
				t.Stop()
				return
			}
			if took := now().Sub(before); took <= piece+slip {
				left -= max(piece, took)
			}
		}
		close(expired)
	}()
	return expired, func() { close(stopped) }
}
