package term

import (
	"encoding/binary"
	"encoding/json"

	"sandgate/sandbox/agent"
)

// The first byte of binary frames.
const (
	frameInput    = 0x00
	frameOutput   = 0x01
	frameSnapshot = 0x02
)

// Bounds of the viewers' protocol.
const (
	credit   = 256 << 10 // bytes that a viewer may have unacknowledged
	maxFrame = 64 << 10  // bytes of one output frame, header included
	// maxSnapshot leaves room in the credit, so that live output can follow before the first acknowledgement.
	maxSnapshot = 192 << 10
	headerSize  = 9
	maxJSON     = 4 << 10
	minCols     = 2
	minRows     = 1
)

const textSuspended = "The sandbox is suspended. It wakes by itself when you type."

const (
	roleDriver = "driver"
	roleViewer = "viewer"
)

// header appends the start of an output or snapshot frame.
func header(dst []byte, kind byte, off int64) []byte {
	return binary.BigEndian.AppendUint64(append(dst, kind), uint64(off))
}

// The JSON messages of the server. Driver is the name of who drives, "" when nobody does.
type (
	helloMessage struct {
		Type   string `json:"type"`
		Role   string `json:"role"`
		Cols   int    `json:"cols"`
		Rows   int    `json:"rows"`
		Oldest int64  `json:"oldest"`
		Next   int64  `json:"next"`
		Driver string `json:"driver"`
	}
	sizeMessage struct {
		Type string `json:"type"`
		Cols int    `json:"cols"`
		Rows int    `json:"rows"`
	}
	roleMessage struct {
		Type   string `json:"type"`
		Role   string `json:"role"`
		Driver string `json:"driver"`
	}
	noticeMessage struct {
		Type string `json:"type"`
		Code string `json:"code"`
		Text string `json:"text"`
	}
	exitMessage struct {
		Type   string `json:"type"`
		Code   int    `json:"code"`
		Signal string `json:"signal"`
	}
)

// recordingMessage tells that a recording began or ended.
type recordingMessage struct {
	Type string `json:"type"`
	On   bool   `json:"on"`
}

// clientMessage is every JSON message of a viewer; absent numbers stay nil.
type clientMessage struct {
	Type   string `json:"type"`
	Cols   *int   `json:"cols"`
	Rows   *int   `json:"rows"`
	Offset *int64 `json:"offset"`
	Name   string `json:"name"`
	ID     *int64 `json:"id"`     // of a ping
	Viewer *int   `json:"viewer"` // the number of one
}

// encode gives the JSON of a message; these structs cannot fail.
func encode(m any) []byte {
	p, _ := json.Marshal(m)
	return p
}

// clampSize keeps a size within what programs and browsers bear.
func clampSize(cols, rows int) agent.Size {
	return agent.Size{Cols: min(max(cols, minCols), agent.MaxCols), Rows: min(max(rows, minRows), agent.MaxRows)}
}

// signals that a driver may send to the foreground processes.
var signals = map[string]bool{"INT": true, "QUIT": true, "TSTP": true, "TERM": true, "KILL": true, "HUP": true, "CONT": true}
