package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"sandgate/internal/fault"
)

// FrameChange is a frame of a watch: JSON FileChange. The answers of GET /v1/files/watch, POST /v1/files/copy and PUT
// /v1/files/archive take their time: they end with FrameExit (the result as JSON), FrameError or, of a watch, FrameEnd, and
// pings fill the silence.
const FrameChange FrameType = 'c'

// Bounds of a search and a watch. A search that meets one ends its page with a cursor and says which one it was.
const (
	SearchTime    = 8 * time.Second // of one page
	SearchEntries = 200_000         // names looked at by one page
	SearchBytes   = 512 << 20       // bytes of content read by one page
	SearchFile    = 64 << 20        // bytes read of one file; the rest of a larger one is not searched
	MaxPattern    = 255             // bytes of a name pattern
	MaxNeedle     = 4096            // bytes of a content
	MaxExcerpt    = 200             // bytes shown of a line that matches
	MaxWatches    = 4096            // directories of one watch
	MaxWatchers   = 16              // watches at a time in one sandbox
)

// Bounds of an archive that is unpacked. What is over one of them is refused whole.
const (
	UnpackEntries = 100_000
	UnpackBytes   = 16 << 30
	UnpackRatio   = 200      // unpacked to packed, once UnpackFree bytes came out
	UnpackFree    = 16 << 20 // bytes
)

// SearchQuery says what to look for below a directory. Links are not followed. Name is a glob over the last part of a
// path ("*.py"), Content a text of bytes; both given, both must hold.
type SearchQuery struct {
	Name    string
	Content []byte
	Cursor  string
	Limit   int // 1..1000
}

// SearchHit is a file that was found; Line (from 1) and Text tell where the content stands first.
type SearchHit struct {
	FileInfo
	Line int64  `json:"line,omitempty"`
	Text []byte `json:"text,omitempty"` // of the line, at most MaxExcerpt bytes around the match
}

// SearchPage is one page of hits. Cursor is "" when all has been searched; Stopped tells which bound ended the page.
type SearchPage struct {
	Hits    []SearchHit `json:"hits"`
	Cursor  string      `json:"cursor"`
	Stopped string      `json:"stopped"` // "" or "limit", "time", "entries", "bytes"
	Partial int         `json:"partial"` // files and directories that could not be searched whole
}

// FileChange is one event of a watch.
type FileChange struct {
	// Type is create, write, remove, rename, chmod; or, about the watch itself, ready (it looks from now on), overflow
	// (events were lost: list again), limit (a directory is not watched: there are too many), gone (the watch is over).
	Type      string `json:"type"`
	PathB64   []byte `json:"path_b64,omitempty"`
	ToB64     []byte `json:"to_b64,omitempty"` // of a rename
	Directory bool   `json:"directory,omitempty"`
}

// Unpacked tells what an archive became.
type Unpacked struct {
	Files       int64 `json:"files"`
	Directories int64 `json:"directories"`
	Links       int64 `json:"links"`
	Bytes       int64 `json:"bytes"`
}

func possiblePath(p []byte, empty bool) bool {
	if len(p) == 0 {
		return empty
	}
	return len(p) < 2*MaxPath && p[0] == '/' && bytes.IndexByte(p, 0) < 0
}

func (c FileChange) check() error {
	switch c.Type {
	case "create", "write", "remove", "rename", "chmod", "ready", "overflow", "limit", "gone":
	default:
		return fmt.Errorf("agent: an impossible change of a file")
	}
	if !possiblePath(c.PathB64, true) || !possiblePath(c.ToB64, true) {
		return fmt.Errorf("agent: an impossible path of a change")
	}
	return nil
}

func (p *SearchPage) check(limit int) error {
	if p.Hits == nil || len(p.Hits) > limit || len(p.Cursor) > 16<<10 || !plain(p.Cursor) || len(p.Stopped) > 16 || !plain(p.Stopped) || p.Partial < 0 {
		return fmt.Errorf("agent: an impossible page of a search")
	}
	for i := range p.Hits {
		h := &p.Hits[i]
		if h.Line < 0 || len(h.Text) > MaxExcerpt || !utf8.Valid(h.Text) {
			return fmt.Errorf("agent: an impossible hit of a search")
		}
		if err := h.FileInfo.check(); err != nil {
			return err
		}
	}
	return nil
}

func (u Unpacked) check() error {
	if u.Files < 0 || u.Directories < 0 || u.Links < 0 || u.Bytes < 0 {
		return fmt.Errorf("agent: an impossible archive")
	}
	return nil
}

// Search looks for files below path, page by page, in the order of their names.
func (c *Client) Search(ctx context.Context, path []byte, s SearchQuery) (SearchPage, error) {
	var page SearchPage
	q, err := pathQuery("path", path)
	switch {
	case err != nil:
		return page, err
	case s.Limit < 1 || s.Limit > 1000:
		return page, fault.Field("limit", "is outside 1 to 1000")
	case len(s.Cursor) > 16<<10:
		return page, fault.Field("cursor", "is not one of ours")
	case len(s.Name) > MaxPattern:
		return page, fault.Field("name", "is longer than %d bytes", MaxPattern)
	case len(s.Content) > MaxNeedle:
		return page, fault.Field("content", "is longer than %d bytes", MaxNeedle)
	}
	q.Set("name_b64", base64.RawURLEncoding.EncodeToString([]byte(s.Name)))
	q.Set("content_b64", base64.RawURLEncoding.EncodeToString(s.Content))
	q.Set("cursor", s.Cursor)
	q.Set("limit", strconv.Itoa(s.Limit))
	if err := c.small(ctx, call{method: http.MethodGet, path: "/v1/files/search", query: q, repeat: true}, maxListJSON, &page); err != nil {
		return page, err
	}
	return page, page.check(s.Limit)
}

// Chmod sets the permission bits of a file or directory. A link is refused: its target is what has bits.
func (c *Client) Chmod(ctx context.Context, path []byte, mode uint32) (FileInfo, error) {
	q, err := pathQuery("path", path)
	if err != nil {
		return FileInfo{}, err
	}
	if mode > 0o7777 {
		return FileInfo{}, fault.Field("mode", "is outside 0000 to 7777")
	}
	q.Set("mode", strconv.FormatUint(uint64(mode), 8))
	return c.fileCall(ctx, call{method: http.MethodPost, path: "/v1/files/chmod", query: q, repeat: true})
}

// Copy copies a file, a link itself, or a directory with all that is in it. What is at the destination stays:
// fault.Conflict. It takes as long as it takes; the copy appears in one step when it is whole.
func (c *Client) Copy(ctx context.Context, source, destination []byte) (FileInfo, error) {
	var info FileInfo
	q, err := pathQuery("source", source, "destination", destination)
	if err != nil {
		return info, err
	}
	leave, err := c.gate.enter(ctx)
	if err != nil {
		return info, err
	}
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := c.do(ctx, call{method: http.MethodPost, path: "/v1/files/copy", query: q})
	if err != nil {
		return info, err
	}
	if err := longAnswer(resp, cancel, &info); err != nil {
		return info, err
	}
	return info, info.check()
}

// longAnswer reads frames until the result, which goes into v.
func longAnswer(resp *http.Response, stop func(), v any) error {
	defer resp.Body.Close()
	fr := &frameReader{r: bufio.NewReaderSize(resp.Body, 4<<10), limit: MaxFrame, stop: stop, wait: silence}
	for {
		t, p, err := fr.next()
		if err != nil {
			return err
		}
		switch t {
		case FramePing:
		case FrameExit:
			d := json.NewDecoder(bytes.NewReader(p))
			d.DisallowUnknownFields() // the end of something else is not the end of this
			if err := d.Decode(v); err != nil {
				return fmt.Errorf("agent answer: %w", err)
			}
			_, _ = io.Copy(io.Discard, io.LimitReader(fr.r, 1<<10)) // to its end, so that the connection serves the next call
			return nil
		case FrameError:
			return failureFrame(p)
		default:
			return fmt.Errorf("agent: a frame of unknown type %q", byte(t))
		}
	}
}

func failureFrame(p []byte) error {
	var fail Failure
	if err := json.Unmarshal(p, &fail); err != nil {
		return fmt.Errorf("agent failure: %w", err)
	}
	return fail.fault()
}

// Watch tells changes in a directory, with recursive in all below it, until ctx ends, out fails or the directory is
// gone (nil). The first change is "ready". A slow out makes the agent lose events, which is told by "overflow".
func (c *Client) Watch(ctx context.Context, path []byte, recursive bool, out func(FileChange) error) error {
	q, err := pathQuery("path", path)
	if err != nil {
		return err
	}
	if recursive {
		q.Set("recursive", "1")
	}
	for again := false; ; again = true {
		holds := c.holdCount()
		err := c.watchOnce(ctx, q, again, out)
		if !errors.Is(err, ErrBridge) || c.holdCount() == holds {
			return err
		}
	}
}

// watchOnce watches as long as the bridge lives. What happened between two watches is not known: again tells "overflow"
// in place of the second "ready".
func (c *Client) watchOnce(ctx context.Context, q url.Values, again bool, out func(FileChange) error) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	resp, err := c.begin(inner, call{method: http.MethodGet, path: "/v1/files/watch", query: q, repeat: true})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fr := &frameReader{r: bufio.NewReaderSize(resp.Body, 16<<10), limit: MaxFrame, stop: cancel, wait: silence}
	for {
		t, p, err := fr.next()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		switch t {
		case FramePing:
		case FrameEnd:
			return nil
		case FrameChange:
			var change FileChange
			if err := json.Unmarshal(p, &change); err != nil {
				return fmt.Errorf("agent change: %w", err)
			}
			if err := change.check(); err != nil {
				return err
			}
			if again && change.Type == "ready" {
				change = FileChange{Type: "overflow"}
			}
			if err := out(change); err != nil {
				return err
			}
		case FrameError:
			return failureFrame(p)
		default:
			return fmt.Errorf("agent: a frame of unknown type %q", byte(t))
		}
	}
}

// Unpack writes the "tar" or "zip" of body below the directory path, which is made when it is missing. The archive is
// unpacked beside its place first, whole, and moved in then: one that is refused or breaks off changes nothing. Refused
// are names that are absolute or hold "..", links that lead out, devices, and what is over the Unpack bounds. size is the
// body's length when known, else -1.
func (c *Client) Unpack(ctx context.Context, path []byte, format string, body io.Reader, size int64) (Unpacked, error) {
	var u Unpacked
	q, err := pathQuery("path", path)
	if err != nil {
		return u, err
	}
	if !ArchiveFormat(format) {
		return u, fault.Field("format", ArchiveFormats)
	}
	q.Set("format", format)
	up := &upload{r: body, left: size, exact: size >= 0}
	k := call{method: http.MethodPut, path: "/v1/files/archive", query: q, header: http.Header{"Expect": {"100-continue"}}}
	k.body = func() (io.Reader, int64) { return up, size }
	if size == 0 {
		return u, fault.New(fault.BadRequest, "The archive is empty.")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var answered atomic.Bool
	resp, err := c.bulkDo(ctx, k, func() bool { return !up.done.Load() && !answered.Load() })
	if err != nil {
		if up.done.Load() && up.err != nil {
			return u, up.err
		}
		return u, err
	}
	answered.Store(true)
	if err := longAnswer(resp, cancel, &u); err != nil {
		return u, err
	}
	return u, u.check()
}

// SearchName says what is wrong with a name pattern, or "".
func SearchName(pattern string) string {
	switch {
	case len(pattern) > MaxPattern:
		return "is longer than " + strconv.Itoa(MaxPattern) + " bytes"
	case strings.ContainsRune(pattern, '/'):
		return "is about the last part of a path and holds no /"
	case strings.ContainsRune(pattern, 0):
		return "holds a NUL byte"
	}
	return ""
}

// ArchiveFormats says in words which formats of archives there are.
const ArchiveFormats = "is none of tar, tar.gz and zip"

// ArchiveFormat reports whether there is a format of archives of this name.
func ArchiveFormat(name string) bool { return name == "tar" || name == "tar.gz" || name == "zip" }
