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

export const weather = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'], additionalProperties: false }

/** The fields that the Open Responses suite wants in every response. */
export const required = ('id object created_at completed_at status incomplete_details model previous_response_id instructions '
  + 'output error tools tool_choice truncation parallel_tool_calls text top_p presence_penalty frequency_penalty top_logprobs '
  + 'temperature reasoning user usage max_output_tokens max_tool_calls store background service_tier metadata '
  + 'safety_identifier prompt_cache_key').split(' ')
