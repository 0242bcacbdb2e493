package api

import (
	"net/http"
	"strconv"
	"strings"

	"sandgate/internal/fault"
)

// quoted writes an entity tag as HTTP does. The agent's are strong.
func quoted(tag string) string {
	if tag == "" || strings.HasPrefix(tag, `"`) {
		return tag
	}
	return `"` + tag + `"`
}

// conditions judges If-Match and If-None-Match against a file that is there. status is 304 when it is answered with that.
func conditions(r *http.Request, tag string) (status int, err error) {
	if v := r.Header.Values("If-Match"); len(v) > 0 && !matches(v, tag, false) {
		return 0, fault.New(fault.Precondition, "The file is not the one that If-Match names.")
	}
	if v := r.Header.Values("If-None-Match"); len(v) > 0 && matches(v, tag, true) {
		return http.StatusNotModified, nil
	}
	return 0, nil
}

// matches looks for a tag in the lists of a header. Weak ones count only where a weak comparison is meant.
func matches(values []string, tag string, weak bool) bool {
	for _, v := range values {
		for item := range strings.SplitSeq(v, ",") {
			item = strings.TrimSpace(item)
			if weak {
				item = strings.TrimPrefix(item, "W/")
			}
			if item == "*" || tag != "" && item == tag {
				return true
			}
		}
	}
	return false
}

// ifRange reports whether a range may be answered: without If-Range, or when it names this very file. Dates are too coarse
// to say that, so with a date the whole file is sent.
func ifRange(r *http.Request, tag string) bool {
	v := r.Header.Get("If-Range")
	return v == "" || v == tag
}

// oneTag reads a condition of a write: "" without one, "*", or one strong tag as HTTP quotes it.
func oneTag(r *http.Request, header string) (string, error) {
	v := strings.TrimSpace(strings.Join(r.Header.Values(header), ","))
	if v == "" || v == "*" {
		return v, nil
	}
	if len(v) < 2 || len(v) > 256 || v[0] != '"' || v[len(v)-1] != '"' || strings.ContainsAny(v[1:len(v)-1], "\",") {
		return "", fault.Field(header, "must be * or one strong entity tag in quotes")
	}
	return v, nil
}

// span is a part of a file.
type span struct{ offset, length int64 }

func (p span) contentRange(size int64) string {
	return "bytes " + strconv.FormatInt(p.offset, 10) + "-" + strconv.FormatInt(p.offset+p.length-1, 10) + "/" + strconv.FormatInt(size, 10)
}

// parseRange reads one byte range. What is no range of bytes, or is several, is not ok: the whole file answers it. One that
// lies beyond the file is an error.
func parseRange(header string, size int64) (p span, ok bool, err error) {
	set, isBytes := strings.CutPrefix(strings.TrimSpace(header), "bytes=")
	first, last, isRange := strings.Cut(strings.TrimSpace(set), "-")
	if !isBytes || !isRange || strings.Contains(set, ",") {
		return span{}, false, nil
	}
	beyond := fault.New(fault.Range, "The file has %d bytes: the range lies beyond them.", size)
	if first == "" { // the last so many bytes
		n, perr := strconv.ParseInt(last, 10, 64)
		if perr != nil || n < 0 {
			return span{}, false, nil
		}
		if n == 0 || size == 0 {
			return span{}, false, beyond
		}
		n = min(n, size)
		return span{size - n, n}, true, nil
	}
	from, perr := strconv.ParseInt(first, 10, 64)
	if perr != nil || from < 0 {
		return span{}, false, nil
	}
	to := size - 1
	if last != "" {
		n, perr := strconv.ParseInt(last, 10, 64)
		if perr != nil || n < from {
			return span{}, false, nil
		}
		to = min(n, to)
	}
	if from >= size {
		return span{}, false, beyond
	}
	return span{from, to - from + 1}, true, nil
}
