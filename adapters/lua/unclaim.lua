-- POSTs with an Idempotency-Key ended without a place in the log that is known.
--
-- KEYS, one for each i = 1..n: <prefix>:{<tenant>}:request:<id>, a hash; see claim.lua.
--   On a cluster one call carries the claims of one tenant (one hash tag) only.
-- ARGV:
--   [1] ttl_ms, how long a digest stays
--   then for each: [3i-1] digest of the body, [3i] owner, [3i+1] '1': in doubt, '0': not in the log
-- Answers the number of keys.
--
-- In doubt: the key stays this body's, and nobody holds it. Not in the log: the claim goes, if it
-- is still this owner's; but where an earlier POST is in doubt, the key stays its body's. What was accepted or ended meanwhile is left alone.

local ttl_ms = tonumber(ARGV[1])
for i = 1, #KEYS do
  local key, digest, owner = KEYS[i], ARGV[3 * i - 1], ARGV[3 * i]
  local stored = redis.call('HMGET', key, 'accepted', 'ended', 'claim', 'doubt')
  local holder = stored[3] and string.match(stored[3], '^%d+ %S* (.*)$')
  if not stored[1] and not stored[2] and (not holder or holder == owner) then
    if ARGV[3 * i + 1] == '1' or stored[4] then
      redis.call('HSET', key, 'claim', '0 ' .. digest .. ' ' .. owner)
      redis.call('PEXPIRE', key, ttl_ms)
    else
      redis.call('HDEL', key, 'claim')
    end
  end
end
return #KEYS
