package embed

import (
	"crypto/subtle"

	"github.com/nats-io/nats-server/v2/server"
)

// OwnUser is the name by which this process is known to its own server; no other may have it.
const OwnUser = "shallot"

// Own is the name and the password of this process.
func (s *Server) Own() (user, password string) { return OwnUser, s.own }

// door asks who connects.
type door struct {
	login func(user, password string) (Rights, bool)
	own   string
}

// Check implements server.Authentication.
func (d door) Check(c server.ClientAuthentication) bool {
	o := c.GetOpts()
	rights := Rights{All: true}
	if o.Username != OwnUser || subtle.ConstantTimeCompare([]byte(o.Password), []byte(d.own)) != 1 {
		var ok bool
		if rights, ok = d.login(o.Username, o.Password); !ok {
			return false
		}
	}
	c.RegisterUser(&server.User{Username: o.Username, Permissions: rights.permissions()})
	return true
}

// permissions are allow lists only; without a name on a list nothing of its kind is allowed.
func (r Rights) permissions() *server.Permissions {
	if r.All {
		return nil
	}
	list := func(allow []string) *server.SubjectPermission {
		if len(allow) == 0 {
			return &server.SubjectPermission{Deny: []string{">"}}
		}
		return &server.SubjectPermission{Allow: allow}
	}
	return &server.Permissions{Publish: list(r.Publish), Subscribe: list(r.Subscribe)}
}
