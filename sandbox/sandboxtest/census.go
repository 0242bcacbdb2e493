// Package sandboxtest owns what proves a runtime: the contract every one must keep, a census of what is left on the
// host, and a fake that needs no privilege. It must never be imported by the product.
package sandboxtest

import (
	"bufio"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
)

// Census lists everything on the host that bears an installation's mark: processes, cgroups in every hierarchy, mounts,
// network namespaces, links and directories (those of data directories only when these are given). Empty means clean.
func Census(inst string, dataDirs ...string) ([]string, error) {
	var left []string
	var errs []error
	for _, look := range []func(string) ([]string, error){processes, cgroups, mounts, namespaces, links} {
		found, err := look(inst)
		left = append(left, found...)
		errs = append(errs, err)
	}
	dirs := []string{"/run/sandgate/" + inst}
	for _, d := range dataDirs {
		found, err := filepath.Glob(filepath.Join(d, "sandboxes", "sg-"+inst+"-*"))
		errs = append(errs, err)
		dirs = append(dirs, found...)
	}
	for _, d := range dirs {
		if _, err := os.Lstat(d); err == nil {
			left = append(left, "directory "+d)
		}
	}
	sort.Strings(left)
	return left, errors.Join(errs...)
}

// bears reports whether a text holds one of the names that only this installation makes.
func bears(text, inst string) bool {
	for _, mark := range []string{"sg-" + inst + "-", "sandgate-" + inst, "/sandgate/" + inst + "/"} {
		if strings.Contains(text, mark) {
			return true
		}
	}
	return false
}

func processes(inst string) ([]string, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err != nil || pid == os.Getpid() {
			continue
		}
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err != nil { // gone meanwhile
			continue
		}
		line := strings.ReplaceAll(string(b), "\x00", " ")
		// The mark has to be in an argument of runsc's: an editor that holds such a file open is nobody's leak.
		if strings.Contains(line, "--root=") && bears(line, inst) {
			out = append(out, "process "+e.Name()+" "+line[:min(len(line), 2000)])
		}
	}
	return out, nil
}

func cgroups(inst string) ([]string, error) {
	var out []string
	err := mountLines(func(point, fstype, _ string) {
		if fstype != "cgroup" && fstype != "cgroup2" {
			return
		}
		_ = filepath.WalkDir(filepath.Join(point, "sandgate-"+inst), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				out = append(out, "cgroup "+path)
			}
			return nil
		})
	})
	return out, err
}

func mounts(inst string) ([]string, error) {
	var out []string
	err := mountLines(func(point, fstype, source string) {
		if fstype != "cgroup" && bears(point+"/", inst) || bears(source, inst) {
			out = append(out, "mount "+point+" ("+fstype+")")
		}
	})
	return out, err
}

func mountLines(each func(point, fstype, source string)) error {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		before, after, _ := strings.Cut(sc.Text(), " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) > 4 && len(right) > 1 {
			each(left[4], right[0], right[1])
		}
	}
	return sc.Err()
}

func namespaces(inst string) ([]string, error) {
	found, err := filepath.Glob("/run/netns/sg-" + inst + "-*")
	for i := range found {
		found[i] = "network namespace " + found[i]
	}
	return found, err
}

func links(inst string) ([]string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, l := range all {
		if strings.HasPrefix(l.Name, "sg"+inst) {
			out = append(out, "link "+l.Name)
		}
	}
	return out, nil
}
