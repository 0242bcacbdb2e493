package term

import "sandgate/sandbox/agent"

// replayer is an attachment that knows where what the agent had kept ends. Without it, silence tells.
type replayer interface {
	// ReplayEnd is the offset that came next when the terminal was attached.
	ReplayEnd() int64
}

// Replayed notes on an attachment which offset came next when it was made (agent.PTY's Next), so that the hub need not
// guess from silence where what the agent had kept ends: a first viewer gets that as a snapshot, not as live output.
func Replayed(att agent.Attachment, next int64) agent.Attachment {
	return replayed{att, next}
}

type replayed struct {
	agent.Attachment
	end int64
}

func (r replayed) ReplayEnd() int64 { return r.end }
