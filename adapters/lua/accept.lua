-- Accepted requests enter the index: where each stands in the log; the first place stays.
--
-- KEYS, one for each request i = 1..n: <prefix>:{<tenant>}:request:<id>, a hash.
--   On a cluster one call carries the requests of one tenant (one hash tag) only.
-- ARGV:
--   [1] ttl_ms of a waiting request's entry
--   then for each request: [i+1] acceptance (JSON)
-- Answers the number of keys.
--
-- The end may have come first: it has set its own time, which stays. The acceptance has the digest
-- of the body, so that a claim (see claim.lua) has done its work.

local ttl_ms = ARGV[1]
for i = 1, #KEYS do
  redis.call('HSETNX', KEYS[i], 'accepted', ARGV[i + 1])
  redis.call('HDEL', KEYS[i], 'claim')
  redis.call('PEXPIRE', KEYS[i], ttl_ms, 'NX')
end
return #KEYS
