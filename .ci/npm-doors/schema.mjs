// What Open Responses says of its objects, written down here from the specification's facts: the keys that must be
// there, and what they may be. An item, a part or an event of a type that is not listed is an error.
import { z } from 'zod'

const count = z.number().int().nonnegative()
const text = z.string()
const id = z.string().min(1)
const kind = (type, shape) => z.object({ type: z.literal(type), ...shape })

const logprob = z.object({ token: text, logprob: z.number(), bytes: z.array(z.number()), top_logprobs: z.array(z.unknown()) })
const part = z.discriminatedUnion('type', [
  kind('output_text', { text, annotations: z.array(z.unknown()), logprobs: z.array(logprob).optional() }),
  kind('refusal', { refusal: text }),
  kind('summary_text', { text }),
  kind('reasoning_text', { text }),
  kind('input_text', { text }),
  kind('input_image', { image_url: text.nullable(), detail: z.enum(['low', 'high', 'auto']) }),
  kind('input_file', { filename: text.optional(), file_url: text.optional() }),
  kind('text', { text }),
])

const status = z.enum(['in_progress', 'completed', 'incomplete'])
export const item = z.discriminatedUnion('type', [
  kind('message', { id, status, role: z.enum(['user', 'assistant', 'system', 'developer']), content: z.array(part) }),
  kind('function_call', { id, call_id: id, name: id, arguments: text, status }),
  kind('function_call_output', { id, call_id: id, output: z.union([text, z.array(part)]), status }),
  kind('reasoning', { id, summary: z.array(part), content: z.array(part).optional(), encrypted_content: text.optional() }),
  kind('compaction', { id, encrypted_content: text }),
])

export const usage = z.object({ input_tokens: count, output_tokens: count, total_tokens: count,
  input_tokens_details: z.object({ cached_tokens: count }), output_tokens_details: z.object({ reasoning_tokens: count }) })

const tool = kind('function', { name: id, description: text.nullable(), parameters: z.record(text, z.unknown()).nullable(), strict: z.boolean().nullable() })
const named = z.object({ type: z.literal('function'), name: text.optional() })
const choice = z.union([z.enum(['none', 'auto', 'required']), named,
  kind('allowed_tools', { tools: z.array(named), mode: z.enum(['none', 'auto', 'required']) })])
const format = z.discriminatedUnion('type', [kind('text', {}), kind('json_object', {}),
  kind('json_schema', { name: text, description: text.nullable(), strict: z.boolean() })])

export const response = z.object({
  id, object: z.literal('response'), created_at: count, completed_at: count.nullable(), model: text,
  status: z.enum(['queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled']),
  incomplete_details: z.object({ reason: text }).nullable(), error: z.object({ code: text, message: text }).nullable(),
  previous_response_id: text.nullable(), instructions: text.nullable(), output: z.array(item), usage: usage.nullable(),
  tools: z.array(tool), tool_choice: choice, parallel_tool_calls: z.boolean(), truncation: z.enum(['auto', 'disabled']),
  text: z.object({ format, verbosity: z.enum(['low', 'medium', 'high']).optional() }),
  reasoning: z.object({ effort: text.nullable(), summary: text.nullable() }).nullable(),
  top_p: z.number(), temperature: z.number(), presence_penalty: z.number(), frequency_penalty: z.number(),
  top_logprobs: count, max_output_tokens: count.nullable(), max_tool_calls: count.nullable(),
  store: z.boolean(), background: z.boolean(), service_tier: text, metadata: z.record(text, text),
  safety_identifier: text.nullable(), prompt_cache_key: text.nullable(), user: text.nullable(),
})

export const compaction = z.object({ id, object: z.literal('response.compaction'), created_at: count, output: z.array(item), usage })

const at = { item_id: id, output_index: count }
const inPart = { ...at, content_index: count }
const inSummary = { ...at, summary_index: count }
const shapes = {
  'response.output_item.added': { output_index: count, item }, 'response.output_item.done': { output_index: count, item },
  'response.content_part.added': { ...inPart, part }, 'response.content_part.done': { ...inPart, part },
  'response.output_text.delta': { ...inPart, delta: text, logprobs: z.array(logprob) },
  'response.output_text.done': { ...inPart, text, logprobs: z.array(logprob) },
  'response.refusal.delta': { ...inPart, delta: text }, 'response.refusal.done': { ...inPart, refusal: text },
  'response.function_call_arguments.delta': { ...at, delta: text }, 'response.function_call_arguments.done': { ...at, arguments: text },
  'response.reasoning_summary_part.added': { ...inSummary, part }, 'response.reasoning_summary_part.done': { ...inSummary, part },
  'response.reasoning_summary_text.delta': { ...inSummary, delta: text }, 'response.reasoning_summary_text.done': { ...inSummary, text },
}
for (const s of ['queued', 'created', 'in_progress', 'completed', 'failed', 'incomplete']) shapes[`response.${s}`] = { response }
export const event = z.discriminatedUnion('type', Object.entries(shapes).map(([type, shape]) => kind(type, { sequence_number: count, ...shape })))
