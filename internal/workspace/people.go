package workspace

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"sandgate/auth"
	"sandgate/internal/approval"
	"sandgate/internal/audit"
	"sandgate/internal/fault"
	"sandgate/sandbox"
)

// people is the state of the half of the service that deals with people, keys and rights.
type people struct {
	hash     *auth.Hasher
	throttle *throttle
	noted    *throttle // refusals of one key, of which one a minute goes on record
	guard    guard
	keys     keyring
}

// Lives of links.
const (
	setupTokenLife = 24 * time.Hour
	invitationLife = 7 * 24 * time.Hour
)

// New makes a Service. Without Sandboxes, Terminals and Images it serves people and keys alone, as commands on the host do.
func New(o Options) (*Service, error) {
	if o.Store == nil || o.Audit == nil || o.Gate == nil {
		return nil, errors.New("workspace: store, audit and gate are required")
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Service{o: o, people: people{
		hash:     auth.NewHasher(auth.DefaultHashParams),
		throttle: newThrottle(maxThrottled),
		noted:    newThrottle(maxThrottled),
	}}
	return s, nil
}

// peopleChanged makes open pages and open streams of this process look again; those of others see the epoch.
func (s *Service) peopleChanged(workspaceID string) {
	s.people.guard.look()
	if workspaceID != "" {
		s.feed.send(workspaceID, Change{Kind: "people"})
	}
}

// refuse puts a refusal on record and returns it; a record that cannot be written is the graver error.
func (s *Service) refuse(ctx context.Context, a auth.Actor, what approval.Action, err *fault.Error) error {
	if nerr := s.o.Audit.Note(ctx, event(a, what, audit.Refused, err.Public)); nerr != nil {
		return nerr
	}
	return err
}

// SetupNeeded reports whether no user exists yet.
func (s *Service) SetupNeeded(ctx context.Context) (bool, error) {
	n, err := s.o.Store.CountUsers(ctx)
	return err == nil && n == 0, err
}

// NewSetupToken makes the token of the link for the first administrator; the one before dies. Single use, 24 h.
func (s *Service) NewSetupToken(ctx context.Context) (string, error) {
	token := auth.NewToken()
	err := s.change(ctx, system(), approval.Action{Kind: approval.Other, Name: "setup.link"}, func(ctx context.Context) (string, error) {
		return "", s.o.Store.SetSetupToken(ctx, auth.HashSecret(token), s.o.Now().Add(setupTokenLife))
	})
	return token, err
}

// system is the actor of what the server and commands on the host do by themselves.
func system() auth.Actor { return auth.Actor{Kind: auth.System, Name: "system"} }

// SetupForm is what the first administrator fills in.
type SetupForm struct {
	Token, Email, Password, WorkspaceName string
	RunCode                               bool // "let me run code here": grants sandboxes:run, on record
}

// Setup makes the first administrator and workspace. A used, wrong or old token: fault.Forbidden.
func (s *Service) Setup(ctx context.Context, f SetupForm, address, requestID string) (auth.User, auth.Workspace, error) {
	now := s.o.Now()
	if err := s.slowDown(s.people.throttle.take(now, addressKey(address))); err != nil {
		return auth.User{}, auth.Workspace{}, err
	}
	token := auth.HashSecret(f.Token)
	a := auth.Actor{Kind: auth.Person, Name: "first administrator", Address: address, RequestID: requestID}
	what := approval.Action{Kind: approval.Other, Name: "setup.finish"}
	live, err := s.o.Store.SetupTokenLive(ctx, token, now)
	if err != nil {
		return auth.User{}, auth.Workspace{}, err
	}
	if !live {
		return auth.User{}, auth.Workspace{}, s.refuse(ctx, a, what, fault.New(fault.Forbidden, "This link was used already or is too old. The server prints a new one when it starts."))
	}
	s.people.throttle.forgive(addressKey(address))
	email, name, err := s.setupFields(f)
	if err != nil {
		return auth.User{}, auth.Workspace{}, err
	}
	hash, err := s.people.hash.Hash(ctx, f.Password)
	if err != nil {
		return auth.User{}, auth.Workspace{}, err
	}
	u := auth.User{ID: sandbox.RandomID("us"), Email: email, PasswordHash: hash, Admin: true, CreatedAt: now}
	w := auth.Workspace{ID: sandbox.RandomID("ws"), Slug: slugOf(name), Name: name, CreatedAt: now}
	m := auth.Member{WorkspaceID: w.ID, UserID: u.ID, Role: auth.Admin, JoinedAt: now}
	if f.RunCode {
		m.Granted = auth.Permissions{auth.SandboxesRun}
	}
	a.UserID, a.Name, a.Workspace, what.Target = u.ID, u.Email, w, email
	err = s.change(ctx, a, what, func(ctx context.Context) (string, error) {
		stored, err := s.o.Store.CreateFirst(ctx, token, now, u, w, m)
		w = stored
		return describe(m) + " in " + name, err
	})
	if err != nil {
		return auth.User{}, auth.Workspace{}, err
	}
	a.Workspace = w
	if f.RunCode {
		grant := approval.Action{Kind: approval.Other, Name: "member.grant", Target: email}
		err = s.o.Audit.Note(ctx, event(a, grant, audit.OK, string(auth.SandboxesRun)))
	}
	u.PasswordHash = ""
	return u, w, err
}

func (s *Service) setupFields(f SetupForm) (email, name string, err error) {
	bad := map[string]string{}
	gather := func(err error) {
		var e *fault.Error
		if errors.As(err, &e) {
			for k, v := range e.Fields {
				bad[k] = v
			}
		}
	}
	email, err = auth.NormalEmail(f.Email)
	gather(err)
	gather(auth.CheckNewPassword(f.Password, email))
	name, err = workspaceName(f.WorkspaceName)
	gather(err)
	return email, name, fieldsFault(bad)
}

// describe says what a member may do, for the record.
func describe(m auth.Member) string {
	text := "role " + string(m.Role)
	if len(m.Granted) > 0 {
		text += ", granted " + m.Granted.String()
	}
	return text
}

const maxWorkspaceName = 60

func workspaceName(name string) (string, error) {
	name = strings.TrimSpace(name)
	if name == "" {
		return "", fault.Field("name", "must not be empty")
	}
	if msg := textProblem(name, maxWorkspaceName); msg != "" {
		return "", fault.Field("name", "%s", msg)
	}
	return name, nil
}

// slugOf makes the part of a URL from a name: what is neither letter nor digit of ASCII becomes a hyphen.
func slugOf(name string) string {
	var b strings.Builder
	gap := false
	for _, r := range strings.ToLower(name) {
		if (r >= 'a' && r <= 'z') || (r >= '0' && r <= '9') {
			if gap && b.Len() > 0 {
				b.WriteByte('-')
			}
			b.WriteRune(r)
			gap = false
		} else {
			gap = true
		}
		if b.Len() >= 40 {
			break
		}
	}
	if b.Len() == 0 {
		return "workspace"
	}
	return b.String()
}

// WorkspacesOf lists the workspaces a person is a member of, by name.
func (s *Service) WorkspacesOf(ctx context.Context, userID string) ([]auth.Workspace, error) {
	return s.o.Store.WorkspacesOf(ctx, userID)
}

// CreateWorkspace makes one with the actor as its admin. Needs auth.User.Admin.
func (s *Service) CreateWorkspace(ctx context.Context, a auth.Actor, name string) (auth.Workspace, error) {
	what := approval.Action{Kind: approval.Other, Name: "workspace.create", Target: name}
	if err := s.installationAdmin(ctx, a, what); err != nil {
		return auth.Workspace{}, err
	}
	name, err := workspaceName(name)
	if err != nil {
		return auth.Workspace{}, err
	}
	w, m := s.newWorkspace(name), auth.Member{UserID: a.UserID, Role: auth.Admin, JoinedAt: s.o.Now()}
	m.WorkspaceID, a.Workspace, what.Target = w.ID, w, name
	err = s.change(ctx, a, what, func(ctx context.Context) (detail string, err error) {
		w, err = s.o.Store.InsertWorkspace(ctx, w, m)
		return "slug " + w.Slug, err
	})
	return w, err
}

func (s *Service) newWorkspace(name string) auth.Workspace {
	return auth.Workspace{ID: sandbox.RandomID("ws"), Slug: slugOf(name), Name: name, CreatedAt: s.o.Now()}
}

// installationAdmin refuses whoever is not a person with an account that may create workspaces.
func (s *Service) installationAdmin(ctx context.Context, a auth.Actor, what approval.Action) error {
	if a.Kind == auth.Person {
		u, err := s.o.Store.UserByID(ctx, a.UserID)
		if err == nil && u.Admin && !u.Disabled {
			return nil
		}
		if err != nil && !fault.Is(err, fault.NotFound) {
			return fmt.Errorf("read user %s: %w", a.UserID, err)
		}
	}
	return s.refuse(ctx, a, what, fault.New(fault.Forbidden, "Only an administrator of this installation can create workspaces."))
}
