// What the tests share. ../clients starts the gateway; its demonstration models answer, so nothing is scripted.
import assert from 'node:assert/strict'

export const base = process.env.SHALLOT_URL ?? assert.fail('SHALLOT_URL is not set; run .ci/clients')
export const v1 = `${base}/v1`

/** Runs f, which must fail, and returns the error. */
export async function fails(f) {
  try {
    await f()
  } catch (e) {
    return e
  }
  assert.fail('it did not fail')
}

const upstream = process.env.UPSTREAM_URL

/** Tells the upstream what to answer for a model; undefined where there is none. See ../npm/upstream.mjs. */
export const script = upstream && (async (model, answers) => {
  const res = await fetch(`${upstream}/control/script`, { method: 'POST', body: JSON.stringify({ model, answers }) })
  assert.ok(res.ok, await res.text())
})

/** The bodies with which the upstream was asked for a model. */
export const seen = async model => (await (await fetch(`${upstream}/control/seen?model=${model}`)).json()).map(r => Buffer.from(r.body, 'base64'))

export const weather = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false }

/** The fields that the Open Responses suite wants in every response. */
export const required = ('id object created_at completed_at status incomplete_details model previous_response_id instructions '
  + 'output error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs '
  + 'temperature reasoning user usage max_output_tokens max_tool_calls store background service_tier metadata '
  + 'safety_identifier prompt_cache_key').split(' ')
