package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
)

// remote are the flags of commands that speak to a server over REST, as the SDK does.
type remote struct {
	URL string `help:"The server." env:"SANDGATE_URL,NOXUS_BACKEND_URL" default:"http://127.0.0.1:8080" placeholder:"URL"`
	Key string `help:"An API key." env:"SANDGATE_KEY,NOXUS_API_KEY" placeholder:"KEY"`
}

// call sends one request; a JSON error of the server becomes the error's text.
func (r *remote) call(e *env, method, path, accept string, body any) (*http.Response, error) {
	if body == nil {
		return r.send(e, method, path, accept, nil, 0, "")
	}
	b, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return r.send(e, method, path, accept, bytes.NewReader(b), int64(len(b)), "application/json")
}

// send is call for any body.
func (r *remote) send(e *env, method, path, accept string, body io.Reader, size int64, media string) (*http.Response, error) {
	if r.Key == "" {
		return nil, errors.New("name an API key: --key KEY or $SANDGATE_KEY")
	}
	req, err := http.NewRequestWithContext(e.ctx, method, strings.TrimRight(r.URL, "/")+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-API-Key", r.Key)
	req.Header.Set("Accept", accept)
	if body != nil {
		req.ContentLength = size
		req.Header.Set("Content-Type", media)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer func() { _ = resp.Body.Close() }()
	var refused struct{ Detail string }
	if json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&refused) != nil || refused.Detail == "" {
		refused.Detail = resp.Status
	}
	return nil, errors.New(refused.Detail)
}

type lsCmd struct {
	remote `embed:""`
}

// Run lists the sandboxes that the key may see.
func (c *lsCmd) Run(e *env) error {
	resp, err := c.call(e, http.MethodGet, "/v1/sandboxes", "application/json", nil)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	var list []struct {
		ID, Status, Label, Image string
		Owner                    struct{ Name string }
		CreatedAt                string `json:"created_at"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		return err
	}
	w := tabwriter.NewWriter(e.stdout, 2, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(w, "ID\tSTATUS\tOWNER\tIMAGE\tCREATED\tLABEL")
	for _, s := range list {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%q\n", s.ID, s.Status, s.Owner.Name, s.Image, s.CreatedAt, s.Label)
	}
	return w.Flush()
}

type runCmd struct {
	remote  `embed:""`
	Timeout int      `help:"Seconds until it is killed." default:"60" env:"SANDGATE_TIMEOUT"`
	ID      string   `arg:"" help:"The sandbox."`
	Command []string `arg:"" passthrough:"" help:"The command, after --."`
}

// Run streams the command's output and exits with its code.
func (c *runCmd) Run(e *env) error {
	words := c.Command
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		return errors.New("name a command after --")
	}
	body := map[string]any{"command": shellWords(words), "timeout": c.Timeout}
	resp, err := c.call(e, http.MethodPost, "/v1/sandboxes/"+url.PathEscape(c.ID)+"/commands", "text/event-stream", body)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if !ok {
			continue
		}
		var ev struct {
			Type, Text, Detail string
			DataB64            []byte `json:"data_b64"`
			ExitCode           int    `json:"exit_code"`
		}
		if err := json.Unmarshal([]byte(data), &ev); err != nil {
			return err
		}
		out := append([]byte(ev.Text), ev.DataB64...)
		switch ev.Type {
		case "stdout":
			_, err = e.stdout.Write(out)
		case "stderr":
			_, err = e.stderr.Write(out)
		case "exit":
			if ev.ExitCode == 0 {
				return nil
			}
			return exitError(ev.ExitCode)
		case "error":
			return errors.New(ev.Detail)
		}
		if err != nil {
			return err
		}
	}
	return errors.Join(errors.New("the server's answer ended early"), lines.Err())
}

// shellWords joins words so that a shell takes each as it is; one word alone is a shell line, as with ssh.
func shellWords(words []string) string {
	if len(words) == 1 {
		return words[0]
	}
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
