-- Which ingresses live: each says so again before its time is over.
--
-- KEYS[1] <prefix>:ingresses   sorted set: name of an ingress -> until when it counts, ms of TIME
-- ARGV    [1] name   [2] ttl_ms
-- Answers how many live.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
redis.call('ZADD', KEYS[1], string.format('%.0f', now + tonumber(ARGV[2])), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
