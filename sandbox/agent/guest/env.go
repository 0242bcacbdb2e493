package guest

import (
	"bufio"
	"os"
	"sort"
	"strings"
	"sync"

	"sandgate/internal/fault"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Bounds of the environment a caller gives: exec would refuse far larger ones with a number nobody understands.
const (
	maxEnvVars = 1000
	maxEnvSize = 128 << 10 // bytes of one name and value
)

// loginEnv is what a login would set, worked out once: profile scripts cost hundreds of milliseconds per command.
type loginEnv struct {
	base []string
	once sync.Once
	vars map[string]string
}

func (l *loginEnv) get() map[string]string {
	l.once.Do(func() {
		l.vars = map[string]string{"PATH": defaultPath, "LANG": "C.UTF-8"}
		readEnvironment("/etc/environment", l.vars)
		for _, kv := range l.base {
			k, v, ok := strings.Cut(kv, "=")
			switch k {
			case "", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "PWD", "OLDPWD", "SHLVL", "_":
			default:
				if ok {
					l.vars[k] = v
				}
			}
		}
	})
	return l.vars
}

// readEnvironment reads pam_env's simple file: KEY=VALUE, quotes around the value allowed.
func readEnvironment(path string, into map[string]string) {
	f, err := os.Open(path)
	if err != nil {
		return
	}
	defer f.Close()
	scan := bufio.NewScanner(f)
	for scan.Scan() {
		line := strings.TrimPrefix(strings.TrimSpace(scan.Text()), "export ")
		k, v, ok := strings.Cut(line, "=")
		if ok && k != "" && !strings.HasPrefix(k, "#") {
			into[k] = strings.Trim(v, `"'`)
		}
	}
}

// environ gives the environment of a new process of account a: login environment, the job's own, the mark.
func (s *Server) environ(a account, own map[string]string, id string, pty bool) ([]string, error) {
	vars := map[string]string{}
	for k, v := range s.login.get() {
		vars[k] = v
	}
	vars["HOME"], vars["USER"], vars["LOGNAME"], vars["SHELL"] = a.home, a.name, a.name, a.shell
	if pty {
		vars["TERM"], vars["COLORTERM"] = "xterm-256color", "truecolor"
	}
	if len(own) > maxEnvVars {
		return nil, fault.Field("env", "has more than %d variables", maxEnvVars)
	}
	for k, v := range own {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.Contains(v, "\x00") {
			return nil, fault.Field("env", "has a variable with an empty name, or with = or NUL in it")
		}
		if len(k)+len(v) > maxEnvSize-2 {
			return nil, fault.Field("env", "has a variable over %d bytes", maxEnvSize)
		}
		vars[k] = v
	}
	delete(vars, "PWD") // follows from where the job starts
	vars[markVar] = id
	out := make([]string, 0, len(vars))
	for k, v := range vars {
		out = append(out, k+"="+v)
	}
	sort.Strings(out)
	return out, nil
}
