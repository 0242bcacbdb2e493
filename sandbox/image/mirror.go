package image

import (
	"bufio"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// sources gives the lines of an apt sources list for a suite. A mirror that was named serves the suite alone; without
// one the host's own Debian mirrors are used, and nothing (the builder's default) where the host has none.
func sources(suite, mirror, aptDir string) []string {
	if mirror != "" {
		return []string{"deb " + mirror + " " + suite + " main"}
	}
	main, security := hostMirrors(aptDir)
	if main == "" {
		return nil
	}
	lines := []string{"deb " + main + " " + suite + " main", "deb " + main + " " + suite + "-updates main"}
	if security != "" {
		lines = append(lines, "deb "+security+" "+suite+"-security main")
	}
	return lines
}

// hostMirrors finds the first Debian mirror and the first Debian security mirror that the host's apt is set up with.
func hostMirrors(aptDir string) (main, security string) {
	files, _ := filepath.Glob(filepath.Join(aptDir, "sources.list.d", "*"))
	sort.Strings(files)
	files = append([]string{filepath.Join(aptDir, "sources.list")}, files...)
	for _, name := range files {
		if !strings.HasSuffix(name, ".list") && !strings.HasSuffix(name, ".sources") {
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			continue
		}
		var entries []aptEntry
		if strings.HasSuffix(name, ".sources") {
			entries = parseDeb822(f)
		} else {
			entries = parseOneLine(f)
		}
		_ = f.Close()
		for _, e := range entries {
			switch {
			case !debianURI(e.uri):
			case strings.HasSuffix(e.suite, "-security"):
				if security == "" {
					security = e.uri
				}
			case main == "" && !strings.Contains(e.suite, "-") && !strings.Contains(e.suite, "/"):
				main = e.uri
			}
		}
	}
	return main, security
}

type aptEntry struct{ uri, suite string }

// debianURI accepts plain web mirrors of Debian proper: their path ends in debian or debian-security. Snapshots, other
// vendors' archives and local files are not mirrors that another suite can be asked of.
func debianURI(s string) bool {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return false
	}
	base := filepath.Base(strings.TrimRight(u.Path, "/"))
	return base == "debian" || base == "debian-security"
}

func parseOneLine(r io.Reader) []aptEntry {
	var out []aptEntry
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		if !strings.HasPrefix(line, "deb ") {
			continue
		}
		rest := strings.TrimSpace(line[4:])
		if strings.HasPrefix(rest, "[") {
			_, after, ok := strings.Cut(rest, "]")
			if !ok {
				continue
			}
			rest = after
		}
		if f := strings.Fields(rest); len(f) >= 2 {
			out = append(out, aptEntry{f[0], f[1]})
		}
	}
	return out
}

func parseDeb822(r io.Reader) []aptEntry {
	var out []aptEntry
	fields := map[string]string{}
	flush := func() {
		if strings.Contains(" "+fields["types"]+" ", " deb ") && fields["enabled"] != "no" {
			for _, u := range strings.Fields(fields["uris"]) {
				for _, s := range strings.Fields(fields["suites"]) {
					out = append(out, aptEntry{u, s})
				}
			}
		}
		fields = map[string]string{}
	}
	key := ""
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		line := sc.Text()
		switch {
		case strings.TrimSpace(line) == "":
			flush()
		case strings.HasPrefix(line, "#"):
		case line[0] == ' ' || line[0] == '\t':
			fields[key] += " " + strings.TrimSpace(line)
		default:
			k, v, ok := strings.Cut(line, ":")
			if ok {
				key = strings.ToLower(strings.TrimSpace(k))
				fields[key] = strings.TrimSpace(v)
			}
		}
	}
	flush()
	return out
}
