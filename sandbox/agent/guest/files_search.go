package guest

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"sandgate/internal/fault"
	"sandgate/sandbox/agent"
)

// search is one page of a walk in the order of names, a directory before what is in it.
type search struct {
	s      *Server
	ctx    context.Context
	q      agent.SearchQuery
	until  time.Time
	page   agent.SearchPage
	last   string // the entry that was looked at last, from the root of the search
	looked int
	read   int64
	buf    []byte
}

// errPageEnds ends a walk; the page says why.
var errPageEnds = errors.New("the page ends")

// search gives the page after q.Cursor of what is below dir.
func (s *Server) search(ctx context.Context, dir string, q agent.SearchQuery) (agent.SearchPage, error) {
	if _, err := path.Match(q.Name, ""); err != nil {
		return agent.SearchPage{}, fault.Field("name", "is not a pattern")
	}
	after, err := base64.RawURLEncoding.DecodeString(q.Cursor)
	if err != nil {
		return agent.SearchPage{}, fault.Field("cursor", "is not one of ours")
	}
	fi, err := os.Stat(dir)
	if err != nil {
		return agent.SearchPage{}, fileFault(err)
	}
	if !fi.IsDir() {
		return agent.SearchPage{}, fault.New(fault.BadRequest, "This is not a directory.")
	}
	k := &search{s: s, ctx: ctx, q: q, until: now().Add(agent.SearchTime), last: string(after), page: agent.SearchPage{Hits: []agent.SearchHit{}}}
	var rest []string
	if len(after) > 0 {
		rest = strings.Split(string(after), "/")
	}
	err = k.walk(dir, "", rest)
	if errors.Is(err, errPageEnds) {
		k.page.Cursor = base64.RawURLEncoding.EncodeToString([]byte(k.last))
		err = nil
	}
	return k.page, fileFault(err)
}

// walk looks at what is in dir. after is where the page before ended: names before its first part are done with.
func (k *search) walk(dir, at string, after []string) error {
	if _, err := os.Lstat(dir); at != "" && err != nil {
		return nil // it vanished
	}
	for _, prefix := range []string{"/proc", "/sys", "/dev", "/.sandgate", "/.sandgate-run"} {
		if dir == prefix {
			return nil // made up by the kernel, or ours
		}
	}
	names, whole, err := namesOf(dir)
	if err != nil {
		if at == "" {
			return err
		}
		k.page.Partial++ // may not be entered
		return nil
	}
	if !whole {
		k.page.Partial++
	}
	for _, name := range names {
		var below []string
		if len(after) > 0 {
			switch c := strings.Compare(name, after[0]); {
			case c < 0:
				continue
			case c == 0:
				below = after[1:]
			}
		}
		p, place := path.Join(dir, name), name
		if at != "" {
			place = at + "/" + name
		}
		known := len(after) > 0 && name == after[0] // looked at on the page before
		fi, err := os.Lstat(p)
		if err != nil {
			continue // it vanished
		}
		if !known {
			if err := k.look(p, place, fi); err != nil {
				return err
			}
		}
		if fi.IsDir() {
			if err := k.walk(p, place, below); err != nil {
				return err
			}
		}
	}
	return nil
}

// namesOf gives the sorted names of a directory, false when there are too many to look at.
func namesOf(dir string) ([]string, bool, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	var names []string
	for len(names) < maxWalked {
		some, err := f.Readdirnames(4096)
		names = append(names, some...)
		if err != nil || len(some) == 0 {
			slices.Sort(names)
			return names, true, nil
		}
	}
	slices.Sort(names)
	return names, false, nil
}

// look judges one entry, or ends the page before it.
func (k *search) look(p, place string, fi fs.FileInfo) error {
	if err := k.ctx.Err(); err != nil {
		return err
	}
	switch {
	case len(k.page.Hits) >= k.q.Limit:
		k.page.Stopped = "limit"
	case k.looked >= agent.SearchEntries:
		k.page.Stopped = "entries"
	case k.read >= agent.SearchBytes:
		k.page.Stopped = "bytes"
	case k.looked > 0 && now().After(k.until):
		k.page.Stopped = "time"
	}
	if k.page.Stopped != "" {
		return errPageEnds
	}
	k.looked++
	k.last = place
	if k.q.Name != "" {
		if ok, err := path.Match(k.q.Name, path.Base(p)); err != nil || !ok {
			return nil //nolint:nilerr // the pattern was tried before
		}
	}
	hit := agent.SearchHit{}
	if len(k.q.Content) > 0 {
		if !fi.Mode().IsRegular() {
			return nil
		}
		found, err := k.within(p, &hit)
		if err != nil || !found {
			if err != nil {
				k.page.Partial++
			}
			return nil //nolint:nilerr // counted as not searched whole
		}
	}
	hit.FileInfo = k.s.info(p, fi)
	k.page.Hits = append(k.page.Hits, hit)
	return nil
}

var errPartial = errors.New("not searched whole")

// within looks for the content in one file, with a window that the content's end may reach over.
func (k *search) within(p string, hit *agent.SearchHit) (bool, error) {
	f, _, err := openRegular(p)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if synthetic(f) {
		return false, errPartial
	}
	if k.buf == nil {
		k.buf = make([]byte, 256<<10)
	}
	kept, line, total := 0, int64(1), int64(0)
	for {
		n, err := io.ReadFull(f, k.buf[kept:])
		total += int64(n)
		k.read += int64(n)
		text := k.buf[:kept+n]
		if i := bytes.Index(text, k.q.Content); i >= 0 {
			hit.Line = line + int64(bytes.Count(text[:i], []byte("\n")))
			hit.Text = excerpt(text, i, len(k.q.Content))
			return true, nil
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return false, nil
		case err != nil:
			return false, err
		case total >= agent.SearchFile || k.read >= agent.SearchBytes || now().After(k.until) || k.ctx.Err() != nil:
			return false, errPartial
		}
		kept = min(len(text), len(k.q.Content)-1)
		line += int64(bytes.Count(text[:len(text)-kept], []byte("\n")))
		copy(k.buf, text[len(text)-kept:])
	}
}

// excerpt gives the line around a match, cut to what is shown, as text.
func excerpt(text []byte, at, length int) []byte {
	from := bytes.LastIndexByte(text[:at], '\n') + 1
	to := len(text)
	if i := bytes.IndexByte(text[at+length:], '\n'); i >= 0 {
		to = at + length + i
	}
	if to-from > agent.MaxExcerpt {
		from = max(from, at-agent.MaxExcerpt/4)
		to = min(to, from+agent.MaxExcerpt)
	}
	// Bytes that are no text, and a character cut in half, give way to nothing: what is shown never grows.
	return bytes.ToValidUTF8(text[from:to], nil)
}
