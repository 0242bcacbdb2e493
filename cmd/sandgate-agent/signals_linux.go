package main

import (
	"os/signal"
	"syscall"
	"unsafe"
)

// unused are signals below the real-time ones that the agent has no use for and that nobody sends to it in passing.
var unused = []syscall.Signal{
	syscall.SIGCHLD, syscall.SIGWINCH, syscall.SIGSTKFLT, syscall.SIGXCPU, syscall.SIGVTALRM, syscall.SIGPROF, syscall.SIGIO, syscall.SIGPWR,
}

// The real-time signals but for 32 to 34, which belong to the C library and to Go.
const firstRealTime, lastSignal = 35, 64

// plainSignals gives signals back to the kernel that Go's runtime catches at its start, to no end here: it has to reset
// each of them in every process that it starts, which with all of them takes sixty system calls, a tenth of a short
// command's time. Some of them, sent to process 1, now end the sandbox; root inside can do that by SIGKILL as well.
func plainSignals() {
	var byDefault [4]uint64 // a struct sigaction of zeros: SIG_DFL
	release := func(sig syscall.Signal) {
		signal.Ignore(sig) // from here on the runtime leaves it alone; children shall not find it ignored
		_, _, _ = syscall.RawSyscall6(syscall.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&byDefault)), 0, 8, 0, 0)
	}
	for _, sig := range unused {
		release(sig)
	}
	for sig := syscall.Signal(firstRealTime); sig <= lastSignal; sig++ {
		release(sig)
	}
}
