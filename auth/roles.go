package auth

import (
	"slices"
	"strings"
)

// Roles lists them from the least to the most.
var Roles = []Role{Viewer, Analyst, Approver, Operator, Admin}

// Valid reports whether r is one of Roles.
func (r Role) Valid() bool { return slices.Contains(Roles, r) }

// Permissions gives what a role holds. SandboxesRun is in none: it is granted beside a role, by name.
func (r Role) Permissions() Permissions {
	switch r {
	case Viewer, Analyst:
		return Permissions{SandboxesRead}
	case Approver:
		return Permissions{SandboxesRead, ApprovalsDecide, AuditRead}
	case Operator:
		return Permissions{SandboxesRead, SandboxesManage, AuditRead}
	case Admin:
		return Permissions{SandboxesRead, SandboxesManage, AuditRead, MembersManage, KeysManage}
	default:
		return nil
	}
}

// Valid reports whether p is one of AllPermissions.
func (p Permission) Valid() bool { return slices.Contains(AllPermissions, p) }

// Sorted gives the set in the order of AllPermissions, each permission once and unknown words left out.
func (ps Permissions) Sorted() Permissions {
	var out Permissions
	for _, p := range AllPermissions {
		if slices.Contains(ps, p) {
			out = append(out, p)
		}
	}
	return out
}

// With gives the union of both sets.
func (ps Permissions) With(more ...Permission) Permissions {
	return append(slices.Clone(ps), more...).Sorted()
}

// Without gives the set less some permissions.
func (ps Permissions) Without(less ...Permission) Permissions {
	return slices.DeleteFunc(slices.Clone(ps), func(p Permission) bool { return slices.Contains(less, p) }).Sorted()
}

// Cut gives the permissions of ps that other has too.
func (ps Permissions) Cut(other Permissions) Permissions {
	return slices.DeleteFunc(slices.Clone(ps), func(p Permission) bool { return !other.Has(p) }).Sorted()
}

// Within reports whether other has every permission of ps, and names the first that it lacks.
func (ps Permissions) Within(other Permissions) (missing Permission, ok bool) {
	for _, p := range ps {
		if !other.Has(p) {
			return p, false
		}
	}
	return "", true
}

// String joins the permissions with commas, as the command line takes them.
func (ps Permissions) String() string {
	words := make([]string, len(ps))
	for i, p := range ps {
		words[i] = string(p)
	}
	return strings.Join(words, ",")
}

// Rights gives what a member may do: their role and what was granted beside it; nothing for a disabled person.
func (m Member) Rights() Permissions {
	if m.Disabled {
		return nil
	}
	return m.Role.Permissions().With(m.Granted...)
}

// ServiceAccountNever lists what no service account may hold: a key that belongs to nobody mints nothing and decides nothing.
var ServiceAccountNever = []Permission{KeysManage, ApprovalsDecide}

// Rights gives what a key may do at this moment: its own list, cut by its owner's rights where it has an owner.
func (k Key) Rights(owner Member) Permissions {
	if k.OwnerID == "" {
		return k.Permissions.Without(ServiceAccountNever...)
	}
	if owner.UserID != k.OwnerID || owner.WorkspaceID != k.WorkspaceID {
		return nil
	}
	return k.Permissions.Cut(owner.Rights())
}
