package apitest

import "github.com/shallot-nats/shallot/messages"

// Remember makes a call one that has ended here.
func (d *Entry) Remember(c *messages.Call) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.tenants == nil {
		d.tenants, d.ended = map[string]string{}, map[string]*messages.Call{}
	}
	d.tenants[c.ID], d.ended[c.ID] = c.Tenant, c
}
