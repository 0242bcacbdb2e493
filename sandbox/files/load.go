package files

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/hex"
	"io"
	"net/http"
	"path"
	"strings"
	"unicode/utf8"

	"sandgate/sandbox/agent"
)

// Bounds of a preview: what a page can show without becoming slow.
const (
	headBytes  = 256 << 10
	imageLimit = 8 << 20
	hexBytes   = 512
	csvRows    = 100
	csvCols    = 50
	csvCell    = 200 // characters
)

// PreviewOf reads the head of a regular file and says how to show it.
func PreviewOf(ctx context.Context, c *agent.Client, p []byte) (Preview, error) {
	info, body, err := c.ReadFile(ctx, p, 0, headBytes)
	if err != nil {
		return Preview{}, err
	}
	defer func() { _ = body.Close() }()
	head, err := io.ReadAll(io.LimitReader(body, headBytes))
	if err != nil {
		return Preview{}, err
	}
	out := Preview{Size: info.Size, Cut: info.Size > int64(len(head))}
	media := http.DetectContentType(head)
	switch {
	case len(head) == 0:
		out.Kind = "empty"
	case raster(media):
		out.Kind, out.Media = "image", media
		if info.Size > imageLimit {
			out.Kind = "large"
		}
	case !textual(head, out.Cut):
		out.Kind, out.Text, out.Cut = "binary", hex.Dump(head[:min(len(head), hexBytes)]), len(head) > hexBytes
	case tabular(p):
		out.Kind = "csv"
		out.Rows, out.Wide = table(head, out.Cut)
		out.Cut = out.Cut || len(out.Rows) > csvRows
		out.Rows = out.Rows[:min(len(out.Rows), csvRows)]
	default:
		out.Kind, out.Text = "text", strings.ToValidUTF8(string(head), "")
	}
	return out, nil
}

// raster names the images that a browser shows without running anything in them.
func raster(media string) bool {
	return media == "image/png" || media == "image/jpeg" || media == "image/gif" || media == "image/webp"
}

// textual reports whether the head is UTF-8 without NUL; a character cut by the head's end is forgiven.
func textual(head []byte, cut bool) bool {
	if bytes.IndexByte(head, 0) >= 0 {
		return false
	}
	for i := 0; cut && i < utf8.UTFMax && len(head) > 0 && !utf8.Valid(head); i++ {
		head = head[:len(head)-1]
	}
	return utf8.Valid(head)
}

func tabular(p []byte) bool {
	ext := strings.ToLower(path.Ext(string(p)))
	return ext == ".csv" || ext == ".tsv"
}

// table reads the first rows leniently: what is no CSV is shown as far as it goes. It gives one row more than is shown.
func table(head []byte, cut bool) (rows [][]string, wide bool) {
	if cut { // the last line is not whole
		if i := bytes.LastIndexByte(head, '\n'); i > 0 {
			head = head[:i+1]
		}
	}
	r := csv.NewReader(bytes.NewReader(bytes.TrimPrefix(head, []byte("\xEF\xBB\xBF"))))
	r.Comma, r.FieldsPerRecord, r.LazyQuotes = delimiter(head), -1, true
	for len(rows) <= csvRows {
		row, err := r.Read()
		if err != nil {
			break
		}
		if len(row) > csvCols {
			row, wide = row[:csvCols], true
		}
		for i, cell := range row {
			if utf8.RuneCountInString(cell) > csvCell {
				row[i] = string([]rune(cell)[:csvCell]) + "…"
			}
		}
		rows = append(rows, row)
	}
	return rows, wide
}

// delimiter takes the one that the first line holds most of.
func delimiter(head []byte) rune {
	line, _, _ := bytes.Cut(head, []byte("\n"))
	best, most := ',', 0
	for _, d := range []rune{',', ';', '\t', '|'} {
		if n := bytes.Count(line, []byte(string(d))); n > most {
			best, most = d, n
		}
	}
	return best
}
