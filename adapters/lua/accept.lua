-- Accepted requests enter the index: where each stands in the log; the first place stays.
--
-- KEYS, three for each request i = 1..n, with the tenant as the hash tag:
--   [3i-2] <prefix>:{<tenant>}:request:<id>   hash: the entry
--   [3i-1] <prefix>:{<tenant>}:requests       sorted set: ids by the time of their acceptance
--   [3i]   <prefix>:{<tenant>}:call:<x-request-id>   the same of one call; without one [3i-1] again
--   On a cluster one call carries the requests of one tenant (one hash tag) only.
-- ARGV:
--   [1] ttl_ms of a waiting request's entry, and of the lists
--   [2] listed_max, [3] listed_per_call_max, ids that a list keeps, the newest
--   then for each request: [2i+2] acceptance (JSON), [2i+3] its time, ms
-- Answers the number of requests.
--
-- The end may have come first: it has set its own time, which stays. The acceptance has the digest
-- of the body, so that a claim (see claim.lua) has done its work.

local ttl_ms = ARGV[1]
local lists = {}

local function list(key, most, at_ms, id)
  redis.call('ZADD', key, 'NX', at_ms, id)
  lists[key] = most
end

for i = 1, #KEYS / 3 do
  local entry, own, call = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local id, at_ms = string.match(entry, '[^:]*$'), ARGV[2 * i + 3]
  redis.call('HSETNX', entry, 'accepted', ARGV[2 * i + 2])
  redis.call('HDEL', entry, 'claim')
  redis.call('PEXPIRE', entry, ttl_ms, 'NX')
  list(own, tonumber(ARGV[2]), at_ms, id)
  if call ~= own then
    list(call, tonumber(ARGV[3]), at_ms, id)
  end
end
for key, most in pairs(lists) do
  redis.call('ZREMRANGEBYRANK', key, 0, string.format('%.0f', -most - 1))
  redis.call('PEXPIRE', key, ttl_ms)
end
return #KEYS / 3
