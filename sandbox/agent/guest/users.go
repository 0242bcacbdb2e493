package guest

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"sandgate/internal/fault"
)

// account is a user of the sandbox, from its own /etc/passwd and /etc/group.
type account struct {
	name   string
	uid    uint32
	gid    uint32
	groups []uint32 // supplementary
	home   string
	shell  string
}

// lookupUser finds an account by "name", "uid" or "uid:gid"; "" is root. An unknown number is a user without a name.
func lookupUser(spec string) (account, error) {
	if spec == "" {
		spec = "root"
	}
	if strings.ContainsAny(spec, "\x00\n/ ") || len(spec) > 256 {
		return account{}, fault.Field("user", "is not a user name")
	}
	name, group, hasGroup := strings.Cut(spec, ":")
	uid, numErr := strconv.ParseUint(name, 10, 31)
	a := account{name: name, home: "/", shell: "/bin/sh"}
	found := false
	passwd.each(7, func(f []string) bool {
		u, err1 := strconv.ParseUint(f[2], 10, 32)
		g, err2 := strconv.ParseUint(f[3], 10, 32)
		if err1 != nil || err2 != nil || (f[0] != name && (numErr != nil || u != uid)) {
			return true
		}
		a.name, a.uid, a.gid, a.home, found = f[0], uint32(u), uint32(g), f[5], true
		if f[6] != "" {
			a.shell = f[6]
		}
		return false
	})
	switch {
	case found:
	case numErr == nil:
		a.uid, a.gid = uint32(uid), uint32(uid)
	case name == "root": // an image without /etc/passwd still has one
		a.home = "/root"
	default:
		return account{}, fault.Field("user", "there is no such user in the sandbox")
	}
	if hasGroup {
		gid, err := strconv.ParseUint(group, 10, 31)
		if err != nil {
			g, ok := groupID(group)
			if !ok {
				return account{}, fault.Field("user", "there is no such group in the sandbox")
			}
			gid = uint64(g)
		}
		a.gid = uint32(gid)
	}
	if a.uid != 0 || a.gid != 0 {
		groups.each(4, func(f []string) bool {
			for member := range strings.SplitSeq(f[3], ",") {
				if member == a.name {
					if g, err := strconv.ParseUint(f[2], 10, 32); err == nil && len(a.groups) < 1024 {
						a.groups = append(a.groups, uint32(g))
					}
				}
			}
			return true
		})
	}
	return a, nil
}

// credential is nil for root, which is what we are.
func (a account) credential() *syscall.Credential {
	if os.Getuid() != 0 || (a.uid == 0 && a.gid == 0) {
		return nil
	}
	return &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}
}

func groupID(name string) (uint32, bool) {
	var id uint32
	found := false
	groups.each(3, func(f []string) bool {
		g, err := strconv.ParseUint(f[2], 10, 32)
		if err == nil && f[0] == name {
			id, found = uint32(g), true
		}
		return !found
	})
	return id, found
}

// eachLine calls f with the fields of each line of a colon-separated file that has at least n of them.
func eachLine(path string, n int, f func([]string) bool) {
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer file.Close()
	scan := bufio.NewScanner(file)
	for scan.Scan() {
		fields := strings.Split(scan.Text(), ":")
		if len(fields) >= n && !f(fields) {
			return
		}
	}
}

// table is a colon-separated file that is kept in memory and read again when it has changed: every command asks it who its
// user is, and a look at the file's stamp costs a fifth of reading it.
type table struct {
	path string
	mu   sync.Mutex
	at   fileStamp
	rows [][]string
}

var passwd, groups = table{path: "/etc/passwd"}, table{path: "/etc/group"}

// maxTable bounds what is kept of a file in lines; more are read each time.
const maxTable = 4096

// each calls f with the fields of each line that has at least n of them, until it answers false.
func (t *table) each(n int, f func([]string) bool) {
	rows, ok := t.load()
	if !ok {
		eachLine(t.path, n, f)
		return
	}
	for _, fields := range rows {
		if len(fields) >= n && !f(fields) {
			return
		}
	}
}

func (t *table) load() (rows [][]string, ok bool) {
	var st syscall.Stat_t
	if err := syscall.Stat(t.path, &st); err != nil {
		return nil, false
	}
	at := fileStamp{st.Ino, st.Ctim.Nano(), st.Size}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows != nil && t.at == at {
		return t.rows, true
	}
	t.rows = nil
	eachLine(t.path, 1, func(f []string) bool {
		rows = append(rows, f)
		return len(rows) <= maxTable
	})
	// A file that changed a moment ago may change again within the same stamp.
	if len(rows) > maxTable || now().Sub(time.Unix(st.Ctim.Unix())) < stampGrain {
		return nil, false
	}
	t.at, t.rows = at, rows
	return rows, true
}

// stampGrain is more than the distance of two moments that a file system may stamp alike.
const stampGrain = 100 * time.Millisecond

// names turns owners' numbers into names, reading the files again only when they changed.
type names struct {
	path string
	mu   sync.Mutex
	at   fileStamp
	byID map[int]string
}

// fileStamp tells one state of a file from another.
type fileStamp struct {
	inode       uint64
	ctime, size int64
}

func (n *names) name(id int) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var st syscall.Stat_t
	if err := syscall.Stat(n.path, &st); err == nil {
		if at := (fileStamp{st.Ino, st.Ctim.Nano(), st.Size}); at != n.at || n.byID == nil {
			n.at, n.byID = at, map[int]string{}
			eachLine(n.path, 3, func(f []string) bool {
				if v, err := strconv.Atoi(f[2]); err == nil {
					if _, dup := n.byID[v]; !dup {
						n.byID[v] = f[0]
					}
				}
				return len(n.byID) < 1<<16
			})
		}
	}
	if s, ok := n.byID[id]; ok {
		return s
	}
	return strconv.Itoa(id)
}
