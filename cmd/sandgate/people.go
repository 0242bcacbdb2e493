package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"sandgate/auth"
	"sandgate/internal/workspace"
)

type userCmd struct {
	Create      userCreate  `cmd:"" help:"Make an account."`
	List        userList    `cmd:"" help:"List accounts."`
	Disable     userDisable `cmd:"" help:"End an account's access at once."`
	SetPassword userSetPw   `cmd:"" help:"Set an account's password; its sessions end."`
}

type userCreate struct {
	place         `embed:""`
	Email         string `required:"" help:"The person's e-mail." env:"SANDGATE_EMAIL"`
	Admin         bool   `help:"May create workspaces." env:"SANDGATE_ADMIN"`
	PasswordStdin bool   `help:"Read the password from standard input (one line)." env:"SANDGATE_PASSWORD_STDIN"`
}

// Run makes the account; without --password-stdin a random password is printed, once.
func (c *userCreate) Run(e *env) error {
	password, err := passwordFrom(e, c.PasswordStdin)
	if err != nil {
		return err
	}
	if _, err := c.openOrMake(); err != nil { // the first thing that is done in a new one
		return err
	}
	return c.with(e, func(ps *parts) error {
		if _, err := ps.service.AdminCreateUser(e.ctx, c.Email, password, c.Admin); err != nil {
			return err
		}
		if !c.PasswordStdin {
			_, err = fmt.Fprintln(e.stdout, password)
		}
		return err
	})
}

type userList struct {
	place `embed:""`
}

// Run lists accounts.
func (c *userList) Run(e *env) error {
	return c.with(e, func(ps *parts) error {
		users, err := ps.service.AdminUsers(e.ctx)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(e.stdout, 2, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(w, "EMAIL\tADMIN\tDISABLED\tCREATED")
		for _, u := range users {
			_, _ = fmt.Fprintf(w, "%s\t%t\t%t\t%s\n", u.Email, u.Admin, u.Disabled, u.CreatedAt.UTC().Format(time.RFC3339))
		}
		return w.Flush()
	})
}

type userDisable struct {
	place `embed:""`
	Email string `required:"" help:"The person's e-mail." env:"SANDGATE_EMAIL"`
}

// Run disables.
func (c *userDisable) Run(e *env) error {
	return c.with(e, func(ps *parts) error { return ps.service.AdminDisableUser(e.ctx, c.Email, true) })
}

type userSetPw struct {
	place         `embed:""`
	Email         string `required:"" help:"The person's e-mail." env:"SANDGATE_EMAIL"`
	PasswordStdin bool   `help:"Read the password from standard input (one line)." env:"SANDGATE_PASSWORD_STDIN"`
}

// Run sets the password.
func (c *userSetPw) Run(e *env) error {
	password, err := passwordFrom(e, c.PasswordStdin)
	if err != nil {
		return err
	}
	return c.with(e, func(ps *parts) error {
		if err := ps.service.AdminSetPassword(e.ctx, c.Email, password); err != nil {
			return err
		}
		if !c.PasswordStdin {
			_, err = fmt.Fprintln(e.stdout, password)
		}
		return err
	})
}

type workspaceCmd struct {
	Create  workspaceCreate  `cmd:"" help:"Make a workspace."`
	List    workspaceList    `cmd:"" help:"List workspaces."`
	Members workspaceMembers `cmd:"" help:"List who is in a workspace."`
	Grant   workspaceGrant   `cmd:"" help:"Make somebody a member, with a role and permissions by name."`
	Limits  workspaceLimits  `cmd:"" help:"Show or set what a workspace allows its sandboxes."`
}

type workspaceCreate struct {
	place `embed:""`
	Name  string `arg:"" help:"The workspace's name."`
}

// Run makes it.
func (c *workspaceCreate) Run(e *env) error {
	return c.with(e, func(ps *parts) error {
		ws, err := ps.service.AdminCreateWorkspace(e.ctx, c.Name)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(e.stdout, ws.Slug)
		return err
	})
}

type workspaceList struct {
	place `embed:""`
}

// Run lists them.
func (c *workspaceList) Run(e *env) error {
	return c.with(e, func(ps *parts) error {
		all, err := ps.service.AdminWorkspaces(e.ctx)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(e.stdout, 2, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(w, "SLUG\tNAME\tCREATED")
		for _, ws := range all {
			_, _ = fmt.Fprintf(w, "%s\t%q\t%s\n", ws.Slug, ws.Name, ws.CreatedAt.UTC().Format(time.RFC3339))
		}
		return w.Flush()
	})
}

type workspaceMembers struct {
	place     `embed:""`
	Workspace string `required:"" help:"Slug or name." env:"SANDGATE_WORKSPACE"`
}

// Run lists them.
func (c *workspaceMembers) Run(e *env) error {
	return c.with(e, func(ps *parts) error {
		all, err := ps.service.AdminMembers(e.ctx, c.Workspace)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(e.stdout, 2, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(w, "EMAIL\tROLE\tPERMISSIONS BESIDE IT")
		for _, m := range all {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%s\n", m.Email, m.Role, m.Granted)
		}
		return w.Flush()
	})
}

type workspaceGrant struct {
	place      `embed:""`
	Workspace  string   `required:"" help:"Slug or name." env:"SANDGATE_WORKSPACE"`
	Email      string   `required:"" help:"The person's e-mail." env:"SANDGATE_EMAIL"`
	Role       string   `required:"" enum:"viewer,analyst,approver,operator,admin" help:"One of viewer, analyst, approver, operator, admin." env:"SANDGATE_ROLE"`
	Permission []string `help:"A permission beside the role, by name; may be repeated." env:"SANDGATE_PERMISSION"`
}

// Run makes or changes the membership.
func (c *workspaceGrant) Run(e *env) error {
	return c.with(e, func(ps *parts) error {
		_, err := ps.service.AdminGrant(e.ctx, c.Workspace, c.Email, auth.Role(c.Role), permissions(c.Permission))
		return err
	})
}

type keyCmd struct {
	Create keyCreate `cmd:"" help:"Make an API key and print it, alone, once."`
	List   keyList   `cmd:"" help:"List a workspace's keys."`
	Revoke keyRevoke `cmd:"" help:"End a key at once."`
}

type keyCreate struct {
	place      `embed:""`
	Workspace  string   `required:"" help:"Slug or name." env:"SANDGATE_WORKSPACE"`
	Name       string   `required:"" help:"What the key is for." env:"SANDGATE_KEY_NAME"`
	Owner      string   `help:"E-mail of the person whose rights bound the key; without: a service account." env:"SANDGATE_KEY_OWNER"`
	Expires    int      `help:"Days until it expires." default:"90" env:"SANDGATE_KEY_EXPIRES"`
	Permission []string `required:"" help:"What the key may do, comma-separated." env:"SANDGATE_PERMISSION"`
}

// Run makes the key.
func (c *keyCreate) Run(e *env) error {
	return c.with(e, func(ps *parts) error {
		_, secret, err := ps.service.AdminCreateKey(e.ctx, workspace.AdminKeyForm{
			Workspace: c.Workspace, Name: c.Name, OwnerEmail: c.Owner, ExpiresDays: c.Expires, Permissions: permissions(c.Permission),
		})
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(e.stdout, secret)
		return err
	})
}

type keyList struct {
	place     `embed:""`
	Workspace string `required:"" help:"Slug or name." env:"SANDGATE_WORKSPACE"`
}

// Run lists keys; secrets are not kept.
func (c *keyList) Run(e *env) error {
	return c.with(e, func(ps *parts) error {
		keys, err := ps.service.AdminKeys(e.ctx, c.Workspace)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(e.stdout, 2, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(w, "ID\tPREFIX\tNAME\tOWNER\tPERMISSIONS\tEXPIRES\tREVOKED")
		for _, k := range keys {
			_, _ = fmt.Fprintf(w, "%s\t%s\t%q\t%s\t%v\t%s\t%t\n", k.ID, k.Prefix, k.Name, k.OwnerEmail, k.Permissions, dateOrNever(k.ExpiresAt), !k.RevokedAt.IsZero())
		}
		return w.Flush()
	})
}

type keyRevoke struct {
	place `embed:""`
	Key   string `arg:"" help:"The key's id, its prefix, or the key itself."`
}

// Run revokes.
func (c *keyRevoke) Run(e *env) error {
	return c.with(e, func(ps *parts) error {
		_, err := ps.service.AdminRevokeKey(e.ctx, c.Key)
		return err
	})
}

// with opens what people commands need and closes it again.
func (p *place) with(e *env, do func(*parts) error) error {
	ps, err := p.people(e)
	if err != nil {
		return err
	}
	defer ps.close()
	return do(ps)
}

func permissions(names []string) auth.Permissions {
	out := make(auth.Permissions, len(names))
	for i, n := range names {
		out[i] = auth.Permission(n)
	}
	return out
}

func dateOrNever(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

// passwordFrom reads one line, or makes a random password.
func passwordFrom(e *env, fromStdin bool) (string, error) {
	if !fromStdin {
		return auth.NewToken()[:24], nil
	}
	line, err := bufio.NewReader(io.LimitReader(e.stdin, 4096)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the password: %w", err)
	}
	return strings.TrimRight(line, "\r\n"), nil
}
