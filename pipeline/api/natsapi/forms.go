package natsapi

// The forms of bodies that no Go type of ours has: they are read as JSON, and what a form does not name is passed on.
const (
	chatForm = Form(`{"type":"object","required":["model","messages"],"properties":{` +
		`"model":{"type":"string"},"messages":{"type":"array","items":{"type":"object","required":["role"]}},` +
		`"stream":{"type":"boolean"},"tools":{"type":"array"},"temperature":{"type":"number"}}}`)
	runForm = Form(`{"type":"object","properties":{"model":{"type":"string","pattern":"^agent/"},` +
		`"input":{"type":["string","array"]},"messages":{"type":"array","items":{"type":"object"}},` +
		`"stream":{"type":"boolean"}},"oneOf":[{"required":["input"]},{"required":["messages"]}]}`)
	replyForm = Form(`{"type":"object","required":["choices"],"properties":{"id":{"type":"string"},` +
		`"model":{"type":"string"},"choices":{"type":"array","items":{"type":"object"}},"usage":{"type":"object"}}}`)
	argumentsForm = Form(`{"type":["object","null"]}`)
	heldForm      = Form(`{"type":"array","items":{"type":"object","required":["call"],"properties":{` +
		`"call":{"type":"string"},"tenant":{"type":"string"},"question":{}}}}`)
	decisionForm = Form(`{"type":"object","required":["call"],"minProperties":2,"properties":{` +
		`"call":{"type":"string"},"answer":{},"decision":{"type":"string"},"reason":{"type":"string"}}}`)
	switchForm = Form(`{"type":["object","string"],"required":["name"],"properties":{"name":{"type":"string"},` +
		`"confirm":{"type":"string"}}}`)
)
