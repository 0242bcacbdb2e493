package guest

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// markVar is in the environment of every process of a job: it finds those that left group, session and parent.
const markVar = "SANDGATE_CMD"

// job is one process tree: a command's or a terminal's.
type job struct {
	id     string
	pid    int // of the main process, also its process group and session
	reaped atomic.Bool
}

// process is what /proc says of one.
type process struct {
	pid, ppid, pgrp, session int
	state                    byte
}

// parseStat reads /proc/PID/stat. The name in parentheses may hold anything, so the fields count from the last one.
func parseStat(pid int, text []byte) (process, bool) {
	i := bytes.LastIndexByte(text, ')')
	if i < 0 {
		return process{}, false
	}
	f := strings.Fields(string(text[i+1:]))
	if len(f) < 4 || len(f[0]) != 1 {
		return process{}, false
	}
	p := process{pid: pid, state: f[0][0]}
	var err error
	for n, dst := range []*int{&p.ppid, &p.pgrp, &p.session} {
		if *dst, err = strconv.Atoi(f[n+1]); err != nil {
			return process{}, false
		}
	}
	return p, true
}

func processes() []process {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	var all []process
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		text, err := os.ReadFile("/proc/" + name + "/stat")
		if err != nil {
			continue
		}
		if p, ok := parseStat(pid, text); ok {
			all = append(all, p)
		}
	}
	return all
}

// members lists the living processes of a job: by session and group of the main process, by the mark, and by parent.
func (j *job) members() []int {
	all := processes()
	in := map[int]bool{}
	byParent := map[int][]int{}
	self := os.Getpid()
	reaped := j.reaped.Load()
	foreign := false
	for _, p := range all {
		byParent[p.ppid] = append(byParent[p.ppid], p.pid)
		if reaped && p.pid == j.pid {
			foreign = true // the number is in use again, so the sessions and groups with it are somebody else's
		}
	}
	var closed []int // whose environment is open to their own user only
	mark := []byte(markVar + "=" + j.id + "\x00")
	for _, p := range all {
		if p.pid == self || p.state == 'Z' || p.state == 'X' {
			continue
		}
		if !foreign && (p.pid == j.pid || p.session == j.pid || p.pgrp == j.pid) {
			in[p.pid] = true
			continue
		}
		switch env, err := os.ReadFile(environOf(p.pid)); {
		case err == nil && hasMark(env, mark):
			in[p.pid] = true
		case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
			closed = append(closed, p.pid)
		}
	}
	for _, pid := range markedAs(closed, mark) {
		in[pid] = true
	}
	queue := make([]int, 0, len(in))
	for pid := range in {
		queue = append(queue, pid)
	}
	dead := map[int]bool{}
	for _, p := range all {
		dead[p.pid] = p.state == 'Z' || p.state == 'X'
	}
	for n := 0; n < len(queue); n++ {
		for _, child := range byParent[queue[n]] {
			if !in[child] && child != self && !dead[child] {
				in[child] = true
				queue = append(queue, child)
			}
		}
	}
	return queue
}

func environOf(pid int) string { return "/proc/" + strconv.Itoa(pid) + "/environ" }

func hasMark(env, mark []byte) bool {
	return bytes.HasPrefix(env, mark) || bytes.Contains(env, append([]byte{0}, mark...))
}

// markedAs gives those of pids that bear the mark, looking at each as its own user. Root without CAP_SYS_PTRACE may not
// read others' environments; a thread that is that user for good, and ends after it, may.
func markedAs(pids []int, mark []byte) []int {
	type owner struct{ uid, gid uint32 }
	byOwner := map[owner][]int{}
	for _, pid := range pids {
		var st syscall.Stat_t
		if syscall.Stat("/proc/"+strconv.Itoa(pid), &st) == nil && st.Uid != 0 {
			o := owner{st.Uid, st.Gid}
			byOwner[o] = append(byOwner[o], pid)
		}
	}
	var found []int
	for o, pids := range byOwner {
		done := make(chan []int)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
			var marked []int
			defer func() { done <- marked }()
			// Raw calls change this thread alone.
			gid, uid := uintptr(o.gid), uintptr(o.uid)
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESGID, gid, gid, gid); errno != 0 {
				return
			}
			if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, uid, uid, uid); errno != 0 {
				return
			}
			for _, pid := range pids {
				if env, err := os.ReadFile(environOf(pid)); err == nil && hasMark(env, mark) {
					marked = append(marked, pid)
				}
			}
		}()
		found = append(found, <-done...)
	}
	return found
}

// signalTree sends sig to every process of the job once and reports whether there was any.
func (j *job) signalTree(sig syscall.Signal) bool {
	pids := j.members()
	for _, pid := range pids {
		_ = syscall.Kill(pid, sig)
	}
	return len(pids) > 0
}

// killTree leaves nothing of the job. Everything is stopped before anything is killed, round by round until no new
// process shows up, so that a tree which forks faster than it is listed comes to rest.
func (s *Server) killTree(j *job) {
	if !j.reaped.Load() {
		// Stopped and not killed: as long as it lives, what its tree has orphaned is its own and is found below it.
		_ = syscall.Kill(-j.pid, syscall.SIGSTOP)
	}
	deadline := time.Now().Add(10 * time.Second)
	stopped := map[int]bool{}
	alone := 0 // how often nothing but the main process was found
	for pause := time.Millisecond; time.Now().Before(deadline); {
		pids := j.members()
		if len(pids) == 0 {
			break
		}
		fresh := 0
		for _, pid := range pids {
			if !stopped[pid] {
				fresh++
				stopped[pid] = true
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		}
		if fresh > 0 && len(stopped) < 1<<14 {
			continue
		}
		// The main process goes last: a process whose parent ends while the list is read is in it with neither the old
		// parent nor the new one. Below a main process that lives it is found the next time.
		if len(pids) == 1 && pids[0] == j.pid {
			alone++
		} else {
			alone = 0
		}
		for _, pid := range pids {
			if pid != j.pid || alone > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		time.Sleep(pause)
		pause = min(2*pause, 50*time.Millisecond)
	}
	if !s.cfg.Init {
		// Orphans of the tree came to us when we are their subreaper; process 1 has its loop for them.
		for pid := range stopped {
			if pid != j.pid {
				_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
			}
		}
	}
}
