package workspace

import (
	"fmt"
	"regexp"
	"runtime"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"sandgate/internal/fault"
	"sandgate/sandbox"
	"sandgate/sandbox/agent"
	"sandgate/sandbox/idle"
)

// Bounds of what callers may ask for; ours, so that a record, a page and an environment stay of sane size.
const (
	maxLabel    = 200      // characters
	maxEnv      = 128      // variables
	maxEnvValue = 32 << 10 // bytes
	maxMetadata = 32       // pairs
	minSecret   = 4        // bytes
	maxCommand  = 1 << 20  // bytes; the kernel inside takes at most 128 KiB an argument, the agent says so
)

var (
	envName  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,127}$`)
	userName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?$`)
)

// check fills the defaults in and refuses what no sandbox can have, or none of this workspace beyond what it has anyway.
func (o *CreateOptions) check(bounds Limits, have sandbox.Resources) error {
	bad := map[string]string{}
	if o.Image == "" {
		o.Image = "base"
	}
	if msg := textProblem(o.Label, maxLabel); msg != "" {
		bad["label"] = msg
	}
	if o.Cwd == "" {
		o.Cwd = agent.Workdir
	}
	if msg := pathProblem(o.Cwd); msg != "" {
		bad["cwd"] = msg
	}
	if o.User == "" {
		o.User = "root"
	}
	if !userName.MatchString(o.User) {
		bad["user"] = "must be a user name or number, with an optional group after a colon"
	}
	if msg := envProblem(o.Env); msg != "" {
		bad["env"] = msg
	}
	if msg := metadataProblem(o.Metadata); msg != "" {
		bad["metadata"] = msg
	}
	if msg := secretsProblem(o.Secrets, o.Env); msg != "" {
		bad["secrets"] = msg
	}
	checkResources(&o.Resources, bad)
	if o.IdleTimeout == 0 {
		o.IdleTimeout = idle.DefaultTimeout
	}
	if o.MaxLifetime == 0 && !o.Persistent { // a persistent one lives until it is killed
		o.MaxLifetime = idle.DefaultLifetime
	}
	checkLife(o.IdleTimeout, o.MaxLifetime, bad)
	bounds.check(o.Resources, have, bad)
	return fieldsFault(bad)
}

func checkLife(timeout, lifetime time.Duration, bad map[string]string) {
	most := int(idle.MaxTimeout.Seconds())
	if timeout < idle.MinTimeout || timeout > idle.MaxTimeout {
		bad["idle_timeout"] = fmt.Sprintf("must be between 1 and %d seconds", most)
	}
	if lifetime != 0 && lifetime < idle.MinTimeout || lifetime > idle.MaxTimeout {
		bad["max_lifetime"] = fmt.Sprintf("must be between 1 and %d seconds", most)
	}
}

func fieldsFault(bad map[string]string) error {
	if len(bad) == 0 {
		return nil
	}
	e := fault.New(fault.Invalid, "Some fields are not valid.")
	if len(bad) == 1 {
		for k, v := range bad {
			e = fault.New(fault.Invalid, "%s %s.", k, v)
		}
	}
	e.Fields = bad
	return e
}

func checkResources(r *sandbox.Resources, bad map[string]string) {
	d := sandbox.DefaultResources
	if r.CPU == 0 {
		r.CPU = min(d.CPU, float64(runtime.NumCPU()))
	}
	if r.MemoryMB == 0 {
		r.MemoryMB = d.MemoryMB
	}
	if r.DiskMB == 0 {
		r.DiskMB = d.DiskMB
	}
	if r.PIDs == 0 {
		r.PIDs = d.PIDs
	}
	switch {
	case !(r.CPU >= 0.1 && r.CPU <= float64(runtime.NumCPU())): // also refuses NaN
		bad["resources.cpu"] = "must be between 0.1 and the host's number of cores"
	case r.MemoryMB < 64 || r.MemoryMB > 64<<10:
		bad["resources.memory_mb"] = "must be between 64 and 65536"
	case r.DiskMB < 16 || r.DiskMB > 256<<10:
		bad["resources.disk_mb"] = "must be between 16 and 262144"
	case r.PIDs < 128 || r.PIDs > 32<<10: // below 256 host tasks even quiet sandboxes die; 128 leaves room for tests of it
		bad["resources.pids"] = "must be between 128 and 32768"
	}
}

func textProblem(s string, limit int) string {
	switch {
	case len(s) > 4*limit || utf8.RuneCountInString(s) > limit:
		return "is too long"
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	case strings.ContainsFunc(s, unicode.IsControl):
		return "must not hold control characters"
	}
	return ""
}

func envProblem(env map[string]string) string {
	if len(env) > maxEnv {
		return "holds more than 128 variables"
	}
	for k, v := range env {
		switch {
		case !envName.MatchString(k):
			return "names must be letters, digits and underscores, not starting with a digit"
		case strings.HasPrefix(k, "SANDGATE_"):
			return "names starting with SANDGATE_ are Sandgate's own"
		case len(v) > maxEnvValue || strings.ContainsRune(v, 0):
			return "values may have up to 32 KiB and no NUL"
		}
	}
	return ""
}

func metadataProblem(pairs map[string]string) string {
	if len(pairs) > maxMetadata {
		return "holds more than 32 pairs"
	}
	for k, v := range pairs {
		if textProblem(k, 64) != "" || k == "" || textProblem(v, 256) != "" {
			return "keys may have 1 to 64 and values up to 256 characters, none of them control characters"
		}
	}
	return ""
}

// secretsProblem judges secrets: variables of the environment that are long enough to be found where they must not show.
func secretsProblem(secrets, env map[string]string) string {
	if msg := envProblem(secrets); msg != "" {
		return msg
	}
	for k, v := range secrets {
		if _, twice := env[k]; twice {
			return "names a variable that env has too"
		}
		if len(v) < minSecret {
			return "values need at least 4 bytes: shorter ones could not be masked where they show up"
		}
	}
	return ""
}

// pathProblem judges a path given as text; the agent judges again, inside.
func pathProblem(p string) string {
	switch {
	case p == "":
		return "must not be empty"
	case len(p) >= agent.MaxPath:
		return "is too long"
	case strings.ContainsRune(p, 0):
		return "must not hold NUL"
	case p[0] != '/':
		return "must be absolute"
	}
	return ""
}

// commandCheck fills the sandbox's own defaults in and refuses what cannot run.
func commandCheck(c *agent.CommandSpec, r sandbox.Record) error {
	bad := map[string]string{}
	switch {
	case strings.TrimSpace(c.Command) == "":
		bad["command"] = "must not be empty"
	case strings.ContainsRune(c.Command, 0):
		bad["command"] = "must not hold NUL"
	case len(c.Command) > maxCommand:
		bad["command"] = "is too long"
	}
	if c.TimeoutMS < 0 || c.TimeoutMS > agent.MaxTimeout.Milliseconds() {
		bad["timeout"] = "must be between 1 second and 24 hours"
	}
	if len(c.Stdin) > agent.MaxStdin {
		bad["stdin"] = "is larger than 16 MiB"
	}
	if textProblem(c.Tag, maxLabel) != "" {
		bad["tag"] = "may have up to 200 characters, none of them control characters"
	}
	placeCheck(&c.Cwd, &c.User, &c.Env, r, bad)
	return fieldsFault(bad)
}

// placeCheck fills cwd, user and environment from the sandbox's record.
func placeCheck(cwd, user *string, env *map[string]string, r sandbox.Record, bad map[string]string) {
	if *cwd == "" {
		*cwd = r.Cwd
	} else if msg := pathProblem(*cwd); msg != "" {
		bad["cwd"] = msg
	}
	if *user == "" {
		*user = r.User
	} else if !userName.MatchString(*user) {
		bad["user"] = "must be a user name or number, with an optional group after a colon"
	}
	if msg := envProblem(*env); msg != "" {
		bad["env"] = msg
	}
	merged := make(map[string]string, len(r.Env)+len(*env))
	for k, v := range r.Env {
		merged[k] = v
	}
	for k, v := range *env {
		merged[k] = v
	}
	*env = merged
}
