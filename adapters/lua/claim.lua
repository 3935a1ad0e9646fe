-- POSTs with an Idempotency-Key begin: each goes on, or learns what there is already.
--
-- KEYS, one for each claim i = 1..n: <prefix>:{<tenant>}:request:<id>, a hash.
--   On a cluster one call carries the claims of one tenant (one hash tag) only.
-- ARGV:
--   [1] claim_ms, how long a claim holds up the copies   [2] ttl_ms, how long its digest stays
--   then for each claim: [2i+1] digest of the body, [2i+2] owner, the ingress
-- Answers n times {accepted, ended, digest, held}:
--   accepted, ended  what is known of the request (JSON), or ''
--   digest           to which the key belongs: the claim's own when it may go on; '' when unknown
--   held             1 while another ingress is at the same body, else 0
--
-- The field `claim` is "<until_ms> <digest> <owner>". Past its time, or by its own owner, it is
-- taken over by the same body; another body never gets the key. The field `doubt` says that it
-- was: who held it before may have the request in the log, whatever becomes of this POST. An entry
-- that is known needs no claim: its acceptance has the digest.

local claim_ms, ttl_ms = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

local function claim(key, digest, owner)
  local stored = redis.call('HMGET', key, 'accepted', 'ended', 'claim')
  local till, first, holder = 0, digest, owner
  if stored[3] then
    till, first, holder = string.match(stored[3], '^(%d+) (%S*) (.*)$')
  end
  if stored[1] or stored[2] then
    return {stored[1] or '', stored[2] or '', stored[3] and first or '', 0}
  end
  if first ~= digest then
    return {'', '', first, 0}
  end
  if holder ~= owner and tonumber(till) > now then
    return {'', '', digest, 1}
  end
  local claimed = string.format('%.0f %s %s', now + claim_ms, digest, owner)
  redis.call('HSET', key, 'claim', claimed)
  if stored[3] then
    redis.call('HSET', key, 'doubt', 1)
  end
  redis.call('PEXPIRE', key, ttl_ms)
  return {'', '', digest, 0}
end

local answers = {}
for i = 1, #KEYS do
  answers[i] = claim(KEYS[i], ARGV[2 * i + 1], ARGV[2 * i + 2])
end
return answers
