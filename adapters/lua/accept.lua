-- Accepted requests enter the index: where each stands in the log, and its tenant's lists. The
-- first place stays.
--
-- KEYS, three for each request i = 1..n:
--   <prefix>:{<tenant>}:request:<id>           hash: the entry
--   <prefix>:{<tenant>}:requests               sorted set: ids by the time of acceptance
--   <prefix>:{<tenant>}:call:<x-request-id>    the same, of one call; the list again: no such call
--   On a cluster one call carries the requests of one tenant (one hash tag) only.
-- ARGV:
--   [1] ttl_ms of a waiting request's entry, and of lists    [2] most ids of a tenant's list
--   [3] most ids of a call's list
--   then for each request: acceptance (JSON), id, time of acceptance (ms)
-- Answers the number of requests.
--
-- The end may have come first: it has set its own time, which stays. The acceptance has the digest
-- of the body, so that a claim (see claim.lua) has done its work.

local ttl_ms, of_tenant, of_call = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local lists = {}
for i = 1, #KEYS / 3 do
  local entry, list, call = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local acceptance, id, at_ms = ARGV[3 * i + 1], ARGV[3 * i + 2], ARGV[3 * i + 3]
  redis.call('HSETNX', entry, 'accepted', acceptance)
  redis.call('HDEL', entry, 'claim', 'doubt')
  redis.call('PEXPIRE', entry, ttl_ms, 'NX')
  redis.call('ZADD', list, 'NX', at_ms, id)
  lists[list] = of_tenant
  if call ~= list then
    redis.call('ZADD', call, 'NX', at_ms, id)
    lists[call] = of_call
  end
end
for list, most in pairs(lists) do
  redis.call('ZREMRANGEBYRANK', list, 0, string.format('%.0f', -most - 1))
  redis.call('PEXPIRE', list, ttl_ms)
end
return #KEYS / 3
