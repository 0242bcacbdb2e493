package guest

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"path"
	"slices"
	"strings"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// maxWalked bounds the names that one listing looks at, over all its directories.
const maxWalked = 1 << 20

// key orders entries: directories first, then by name bytes.
type key struct {
	Dir  bool   `json:"d,omitempty"`
	Name []byte `json:"n"`
}

func (a key) compare(b key) int {
	if a.Dir != b.Dir {
		if a.Dir {
			return -1
		}
		return 1
	}
	return strings.Compare(string(a.Name), string(b.Name))
}

// lister collects one page of a walk in which a directory's entries follow the directory itself.
type lister struct {
	s      *Server
	ctx    context.Context
	limit  int
	page   []agent.FileInfo
	last   []key // place of the page's last entry
	total  int
	more   bool
	walked int
}

// list gives the page of dir after cursor.
func (s *Server) list(ctx context.Context, dir, cursor string, limit, depth int) (agent.Listing, error) {
	var after []key
	if cursor != "" {
		text, err := base64.RawURLEncoding.DecodeString(cursor)
		if err != nil || json.Unmarshal(text, &after) != nil || len(after) > depth {
			return agent.Listing{}, fault.Field("cursor", "is not one of ours")
		}
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return agent.Listing{}, fileFault(err)
	}
	if !fi.IsDir() {
		return agent.Listing{}, fault.New(fault.BadRequest, "This is not a directory.")
	}
	l := &lister{s: s, ctx: ctx, limit: min(max(limit, 1), 1000)}
	if err := l.walk(dir, nil, after, min(max(depth, 1), 10)); err != nil {
		return agent.Listing{}, fileFault(err)
	}
	out := agent.Listing{Entries: l.page, Total: l.total}
	if out.Entries == nil {
		out.Entries = []agent.FileInfo{}
	}
	if l.more {
		text, err := json.Marshal(l.last)
		if err != nil {
			return agent.Listing{}, err
		}
		out.Cursor = base64.RawURLEncoding.EncodeToString(text)
	}
	return out, nil
}

// walk reads one directory. after is the cursor below this directory: entries up to it are on earlier pages.
func (l *lister) walk(dir string, at, after []key, depth int) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	keys, err := l.read(dir)
	if err != nil {
		if len(at) > 0 { // a directory below that vanished or may not be entered
			return nil
		}
		return err
	}
	l.total += len(keys)
	for _, k := range keys {
		var below []key
		skip := false
		if len(after) > 0 {
			switch c := k.compare(after[0]); {
			case c < 0:
				// The whole of it was on earlier pages, but the total wants its children counted.
				skip, below = true, []key{}
			case c == 0:
				skip, below = true, after[1:]
			}
		}
		p := path.Join(dir, string(k.Name))
		place := append(slices.Clone(at), k)
		if !skip {
			l.emit(p, place)
		}
		if !k.Dir || depth <= 1 {
			continue
		}
		if skip && len(after) > 0 && k.compare(after[0]) < 0 {
			l.count(p, depth-1)
			continue
		}
		if err := l.walk(p, place, below, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// count adds the entries of a directory that was on earlier pages.
func (l *lister) count(dir string, depth int) {
	keys, err := l.read(dir)
	if err != nil || l.ctx.Err() != nil {
		return
	}
	l.total += len(keys)
	for _, k := range keys {
		if k.Dir && depth > 1 {
			l.count(path.Join(dir, string(k.Name)), depth-1)
		}
	}
}

func (l *lister) emit(p string, place []key) {
	if len(l.page) >= l.limit {
		l.more = true
		return
	}
	fi, err := os.Lstat(p)
	if err != nil { // vanished meanwhile
		l.total--
		return
	}
	l.page = append(l.page, l.s.info(p, fi))
	l.last = place
}

// read gives the sorted names of a directory.
func (l *lister) read(dir string) ([]key, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var keys []key
	for l.walked < maxWalked {
		entries, err := f.ReadDir(4096)
		for _, e := range entries {
			keys = append(keys, key{Dir: e.IsDir(), Name: []byte(e.Name())})
		}
		l.walked += len(entries)
		if err != nil || len(entries) == 0 {
			break
		}
	}
	slices.SortFunc(keys, key.compare)
	return keys, nil
}
