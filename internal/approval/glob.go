package approval

import (
	"path"
	"strings"
)

// glob matches one word: * and ? match within it.
func glob(pattern, s string) bool {
	// path.Match stops at slashes; a word may hold some.
	ok, err := path.Match(strings.ReplaceAll(pattern, "/", "\x01"), strings.ReplaceAll(s, "/", "\x01"))
	return err == nil && ok
}

// globPath matches a path part by part: * and ? stay within a part, ** stands for any number of parts.
func globPath(pattern, p string) bool {
	return globParts(strings.Split(strings.Trim(pattern, "/"), "/"), strings.Split(strings.Trim(p, "/"), "/"))
}

func globParts(pattern, parts []string) bool {
	// Reached states instead of recursion: many ** cost no more than few.
	reached := map[int]bool{0: true}
	skip := func(set map[int]bool) {
		for i := 0; i < len(pattern); i++ {
			if set[i] && pattern[i] == "**" {
				set[i+1] = true
			}
		}
	}
	skip(reached)
	for _, part := range parts {
		next := map[int]bool{}
		for i := range reached {
			switch {
			case i == len(pattern):
			case pattern[i] == "**":
				next[i] = true
			default:
				if ok, err := path.Match(pattern[i], part); err == nil && ok {
					next[i+1] = true
				}
			}
		}
		skip(next)
		reached = next
	}
	return reached[len(pattern)]
}

// mayMeet reports whether a pattern could match something below a path.
func mayMeet(pattern, p string) bool {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	if p == "/" {
		return true
	}
	for i, want := range strings.Split(strings.Trim(pattern, "/"), "/") {
		if i == len(parts) || want == "**" {
			return true
		}
		if ok, err := path.Match(want, parts[i]); err != nil || !ok {
			return false
		}
	}
	return false
}

// mayMatch reports whether the pattern holds for as much of a command as is certain, and goes on after that.
func mayMatch(pattern string, c simple) bool {
	want := strings.Fields(pattern)
	return len(want) > c.certain && c.certain > 0 && globWords(strings.Join(want[:c.certain], " "), c.argv[:c.certain])
}

// globWords matches a command: the first word of the pattern with the program, by its path where the word has a slash and
// by its name otherwise; further words with its first arguments.
func globWords(pattern string, argv []string) bool {
	want := strings.Fields(pattern)
	if len(want) == 0 || len(argv) < len(want) {
		return false
	}
	program := argv[0]
	if !strings.Contains(want[0], "/") {
		program = path.Base(program)
	}
	if !glob(want[0], program) {
		return false
	}
	for i, w := range want[1:] {
		if !glob(w, argv[i+1]) {
			return false
		}
	}
	return true
}
