package agent

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"sandgate/internal/fault"
)

// pathQuery checks paths and puts them into a query as bytes.
func pathQuery(pairs ...any) (url.Values, error) {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		name, _ := pairs[i].(string)
		raw, _ := pairs[i+1].([]byte)
		p, err := CleanPath(raw)
		if err != nil {
			if e, ok := errors.AsType[*fault.Error](err); ok {
				return nil, fault.Field(name, "%s", e.Fields["path"])
			}
			return nil, err
		}
		q.Set(name+"_b64", base64.RawURLEncoding.EncodeToString(p))
	}
	return q, nil
}

// fileCall does a call that answers one FileInfo.
func (c *Client) fileCall(ctx context.Context, k call) (FileInfo, error) {
	var f FileInfo
	if err := c.small(ctx, k, maxSmall, &f); err != nil {
		return f, err
	}
	return f, f.check()
}

// Stat describes a path without following a last symlink. Missing: fault.NotFound.
func (c *Client) Stat(ctx context.Context, path []byte) (FileInfo, error) {
	q, err := pathQuery("path", path)
	if err != nil {
		return FileInfo{}, err
	}
	return c.fileCall(ctx, call{method: http.MethodGet, path: "/v1/files/stat", query: q, repeat: true})
}

// Place tells where a path really is; follow a last symlink, too, or leave it. What is not there has no Type.
func (c *Client) Place(ctx context.Context, path []byte, follow bool) (Place, error) {
	q, err := pathQuery("path", path)
	if err != nil {
		return Place{}, err
	}
	if !follow {
		q.Set("nofollow", "1")
	}
	return one[Place](ctx, c, call{method: http.MethodGet, path: "/v1/files/place", query: q, repeat: true})
}

func (p Place) check() error {
	if !possiblePath(p.PathB64, false) || len(p.Type) > 32 || !plain(p.Type) || len(p.ETag) > 256 || !plain(p.ETag) || p.Size < 0 {
		return fmt.Errorf("agent: an impossible place")
	}
	return nil
}

// List gives a page of a directory; limit 1..1000; depth 1..10 (deeper entries follow their directory, paths tell them apart).
func (c *Client) List(ctx context.Context, path []byte, cursor string, limit, depth int) (Listing, error) {
	q, err := pathQuery("path", path)
	switch {
	case err != nil:
		return Listing{}, err
	case limit < 1 || limit > 1000:
		return Listing{}, fault.Field("limit", "is outside 1 to 1000")
	case depth < 1 || depth > 10:
		return Listing{}, fault.Field("depth", "is outside 1 to 10")
	case len(cursor) > 16<<10:
		return Listing{}, fault.Field("cursor", "is not one of ours")
	}
	q.Set("cursor", cursor)
	q.Set("limit", strconv.Itoa(limit))
	q.Set("depth", strconv.Itoa(depth))
	var l Listing
	if err := c.small(ctx, call{method: http.MethodGet, path: "/v1/files/list", query: q, repeat: true}, maxListJSON, &l); err != nil {
		return l, err
	}
	return l, l.check(limit)
}

// Mkdir makes a directory with its parents; one that exists already is fine, a file there is fault.Conflict.
func (c *Client) Mkdir(ctx context.Context, path []byte) (FileInfo, error) {
	q, err := pathQuery("path", path)
	if err != nil {
		return FileInfo{}, err
	}
	return c.fileCall(ctx, call{method: http.MethodPost, path: "/v1/files/mkdir", query: q, repeat: true})
}

// Move renames within the sandbox. A destination that exists is fault.Conflict unless overwrite.
func (c *Client) Move(ctx context.Context, source, destination []byte, overwrite bool) (FileInfo, error) {
	q, err := pathQuery("source", source, "destination", destination)
	if err != nil {
		return FileInfo{}, err
	}
	if overwrite {
		q.Set("overwrite", "1")
	}
	return c.fileCall(ctx, call{method: http.MethodPost, path: "/v1/files/move", query: q})
}

// Delete removes a file, a symlink itself, or an empty directory; a full one only when recursive, else fault.Conflict.
// "/", "/work" and the agent's own places are refused with fault.BadRequest.
func (c *Client) Delete(ctx context.Context, path []byte, recursive bool) (Deleted, error) {
	q, err := pathQuery("path", path)
	if err != nil {
		return Deleted{}, err
	}
	if recursive {
		q.Set("recursive", "1")
	}
	return one[Deleted](ctx, c, call{method: http.MethodDelete, path: "/v1/files", query: q})
}

func (d Deleted) check() error {
	if !possibleReplaced(d.Was) {
		return fmt.Errorf("agent: an impossible digest")
	}
	return nil
}

// bulkDo does one call over a bridge of its own, which ends with the answer's body.
func (c *Client) bulkDo(ctx context.Context, k call, uploading func() bool) (*http.Response, error) {
	if err := c.takeBulk(ctx); err != nil {
		return nil, err
	}
	return c.bulkHeld(ctx, k, uploading)
}

// takeBulk waits for the right to one more bulk bridge.
func (c *Client) takeBulk(ctx context.Context) error {
	select {
	case c.bulk <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bulkHeld is bulkDo after takeBulk, which it undoes in the end.
func (c *Client) bulkHeld(ctx context.Context, k call, uploading func() bool) (*http.Response, error) {
	// The multiplexed bridge is looked after; a transfer beside it ends when that one finds the sandbox stopped.
	b, release, err := c.current(ctx)
	if err != nil {
		<-c.bulk
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	unhook := context.AfterFunc(b.stopped, cancel)
	free := sync.OnceFunc(func() { unhook(); cancel(); release(); <-c.bulk })
	t := &http.Transport{
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			conn, cancel, err := c.dialOne(ctx, true)
			if err != nil {
				return nil, err
			}
			return &watchdog{Conn: conn, limit: time.Minute, cancel: cancel, uploading: uploading}, nil
		},
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		ExpectContinueTimeout: callTimeout, ReadBufferSize: 256 << 10, WriteBufferSize: 256 << 10,
	}
	r, err := k.request(ctx)
	if err != nil {
		free()
		return nil, err
	}
	resp, err := t.RoundTrip(r)
	if err != nil {
		ended := ctx.Err()
		free()
		if stopped := context.Cause(b.stopped); stopped != nil {
			return nil, stopped
		}
		if ended != nil {
			return nil, ended
		}
		if errors.Is(err, ErrBridge) {
			return nil, err
		}
		return nil, fmt.Errorf("%s %s: %w: %w", k.method, k.path, ErrBridge, err)
	}
	resp.Body = countedBody{resp.Body, free}
	resp, err = good(resp)
	if err != nil {
		free()
	}
	return resp, err
}

// ReadFile opens a regular file for reading from offset, at most length bytes (-1: to the end). What is above 256 KiB
// comes over a bridge of its own; close the reader. A transfer that breaks is an error at the reader, never a clean
// end. Directory or special file: fault.BadRequest. An offset after the end: fault.Range.
func (c *Client) ReadFile(ctx context.Context, path []byte, offset, length int64) (FileInfo, io.ReadCloser, error) {
	q, err := pathQuery("path", path)
	if err != nil {
		return FileInfo{}, nil, err
	}
	if offset < 0 || length < -1 {
		return FileInfo{}, nil, fault.New(fault.Range, "The range is not one.")
	}
	q.Set("offset", strconv.FormatInt(offset, 10))
	q.Set("length", strconv.FormatInt(length, 10))
	k := call{method: http.MethodGet, path: "/v1/files/raw", query: q, repeat: true}
	if length <= inlineLimit {
		q.Set("inline", strconv.Itoa(inlineLimit))
		info, text, whole, err := c.readInline(ctx, k)
		if err != nil || whole {
			return info, io.NopCloser(bytes.NewReader(text)), err
		}
		q.Del("inline")
	}
	resp, err := c.bulkDo(ctx, k, nil)
	if err != nil {
		return FileInfo{}, nil, err
	}
	info, err := infoOf(resp)
	if err == nil && (resp.ContentLength < 0 || (length >= 0 && resp.ContentLength > length) || resp.ContentLength > info.Size) {
		err = fmt.Errorf("agent: a file of another length than asked for")
	}
	if err != nil {
		_ = resp.Body.Close()
		return info, nil, err
	}
	return info, resp.Body, nil
}

// readInline reads a small file in one call; whole is false when it is not small.
func (c *Client) readInline(ctx context.Context, k call) (info FileInfo, text []byte, whole bool, err error) {
	leave, err := c.gate.enter(ctx)
	if err != nil {
		return info, nil, false, err
	}
	defer leave()
	short, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := c.do(short, k)
	if err != nil {
		return info, nil, false, c.late(ctx, short, k, err)
	}
	defer resp.Body.Close()
	if info, err = infoOf(resp); err != nil {
		return info, nil, false, err
	}
	text, err = io.ReadAll(io.LimitReader(resp.Body, inlineLimit+1))
	if err != nil {
		return info, nil, false, fmt.Errorf("read file: %w: %w", ErrBridge, err)
	}
	if len(text) > inlineLimit {
		return info, nil, false, fmt.Errorf("agent: more of a file than asked for")
	}
	return info, text, resp.Header.Get(NotInline) == "", nil
}

func infoOf(resp *http.Response) (FileInfo, error) {
	var info FileInfo
	text, err := base64.RawURLEncoding.DecodeString(resp.Header.Get(FileHeader))
	if err == nil {
		err = json.Unmarshal(text, &info)
	}
	if err != nil {
		return info, fmt.Errorf("agent file header: %w", err)
	}
	return info, info.check()
}

// WriteOptions are the conditions of a write.
type WriteOptions struct {
	Size        int64  // exact size when known, else -1; a body that is shorter or longer leaves the old file
	Mode        uint32 // of a new file; 0 means 0644; an existing file keeps its mode and owner
	IfMatch     string // an ETag or "*"; fault.Precondition when it does not hold
	IfNoneMatch string // "*": only when nothing is there
	NoParents   bool   // by default missing parent directories are made
}

// WriteFile replaces a file atomically (temporary file beside it, rename); a symlink is followed, its target replaced.
// A new file belongs to the owner of its directory. What is above 256 KiB goes over a bridge of its own. An error of
// body comes back as it is, and leaves the old file.
func (c *Client) WriteFile(ctx context.Context, path []byte, body io.Reader, o WriteOptions) (FileInfo, error) {
	q, err := pathQuery("path", path)
	if err != nil {
		return FileInfo{}, err
	}
	in, away, err := c.gate.wait(ctx)
	if err != nil {
		return FileInfo{}, err
	}
	defer away()
	head, err := io.ReadAll(io.LimitReader(body, inlineLimit+1))
	if err != nil {
		return FileInfo{}, err
	}
	small := len(head) <= inlineLimit
	if small && o.Size >= 0 && int64(len(head)) != o.Size {
		return FileInfo{}, fault.New(fault.BadRequest, "The upload ended at another length than announced; the old file is untouched.")
	}
	q.Set("mode", strconv.FormatUint(uint64(o.Mode&0o7777), 8))
	if o.NoParents {
		q.Set("no_parents", "1")
	}
	k := call{method: http.MethodPut, path: "/v1/files/raw", query: q, header: http.Header{}}
	for name, v := range map[string]string{"If-Match": o.IfMatch, "If-None-Match": o.IfNoneMatch} {
		if v == "" {
			continue
		}
		if len(v) > 256 || !plain(v) {
			return FileInfo{}, fault.New(fault.Precondition, "%s is not an ETag of a file here.", name)
		}
		k.header[name] = []string{v}
	}
	if small {
		q.Set("size", strconv.Itoa(len(head)))
		k.body = func() (io.Reader, int64) { return bytes.NewReader(head), int64(len(head)) }
		defer in()()
		var f FileInfo
		if err := c.inside(ctx, k, maxSmall, &f); err != nil {
			return f, err
		}
		return f, f.check()
	}
	if err := c.takeBulk(ctx); err != nil {
		return FileInfo{}, err
	}
	away()
	up := &upload{r: io.MultiReader(bytes.NewReader(head), body), left: o.Size, exact: o.Size >= 0}
	q.Set("size", strconv.FormatInt(o.Size, 10))
	k.header["Expect"] = []string{"100-continue"} // a refusal comes before the body, not in the middle of it
	k.body = func() (io.Reader, int64) { return up, o.Size }
	resp, err := c.bulkHeld(ctx, k, func() bool { return !up.done.Load() })
	if err != nil {
		if up.done.Load() && up.err != nil {
			return FileInfo{}, up.err
		}
		return FileInfo{}, err
	}
	var info FileInfo
	if err := readJSON(resp, maxSmall, &info); err != nil {
		return info, err
	}
	return info, info.check()
}

// upload is a body that knows whether it has been sent and whether its source failed.
type upload struct {
	r     io.Reader
	left  int64
	exact bool
	done  atomic.Bool
	err   error // valid once done
}

// Read gives the last bytes of an announced length only when the source has no more: with them the agent would take the
// upload for a good one.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	if u.exact {
		if u.left -= int64(n); u.left == 0 && err == nil {
			var more [1]byte
			var k int
			for k == 0 && err == nil {
				k, err = u.r.Read(more[:])
			}
			u.left -= int64(k)
		}
		switch {
		case u.left < 0:
			n, err = 0, fault.New(fault.BadRequest, "The upload is longer than announced; the old file is untouched.")
		case errors.Is(err, io.EOF) && u.left > 0:
			n, err = 0, fault.New(fault.BadRequest, "The upload ended before its announced length; the old file is untouched.")
		case err != nil && !errors.Is(err, io.EOF):
			n = 0
		}
	}
	if err != nil {
		if !errors.Is(err, io.EOF) {
			u.err = err
		}
		u.done.Store(true)
	}
	return n, err
}

// Archive streams a directory or file as "tar" or "zip": relative names, links as links, specials skipped and listed in a
// last entry ".sandgate-skipped.txt" when there were any. A cut stream is an error at the reader, never a clean end.
func (c *Client) Archive(ctx context.Context, path []byte, format string) (io.ReadCloser, error) {
	q, err := pathQuery("path", path)
	if err != nil {
		return nil, err
	}
	if !ArchiveFormat(format) {
		return nil, fault.Field("format", ArchiveFormats)
	}
	q.Set("format", format)
	resp, err := c.bulkDo(ctx, call{method: http.MethodGet, path: "/v1/files/archive", query: q}, nil)
	if err != nil {
		return nil, err
	}
	return resp.Body, nil
}
