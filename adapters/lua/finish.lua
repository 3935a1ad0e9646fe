-- Terminal outcomes of requests: the first one of each stays, outcome and body together.
--
-- KEYS, one for each ending i = 1..n: <prefix>:{<tenant>}:request:<id>, a hash.
--   On a cluster one call carries the endings of one tenant (one hash tag) only.
-- ARGV:
--   [1] ttl_ms of an ended request's entry
--   then for each ending: [3i-1] outcome (JSON), [3i] '1' with a body, [3i+1] the body or ''

local ttl_ms = tonumber(ARGV[1])
for i = 1, #KEYS do
  if redis.call('HSETNX', KEYS[i], 'ended', ARGV[3 * i - 1]) == 1 then
    if ARGV[3 * i] == '1' then
      redis.call('HSET', KEYS[i], 'body', ARGV[3 * i + 1])
    end
    redis.call('PEXPIRE', KEYS[i], ttl_ms)
  end
end
return #KEYS
