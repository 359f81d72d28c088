"""What the store does in one step, for nobody to see it half done. Lua, run by ``EVAL``.

The head's ``rules`` is how many there are in version ``counted``; a writer that does not know of it leaves it behind.
Every script looks at the types of its keys before it writes, and all it writes is decided by then: an error leaves
everything as it was. Keys: head, table, log.
"""

from __future__ import annotations

from typing import Final

_TYPES: Final = """
local function wrong()
  local kinds = {'hash', 'hash', 'stream'}
  for at, key in ipairs(KEYS) do
    local kind = redis.call('TYPE', key)['ok']
    if kind ~= 'none' and kind ~= kinds[at] then return {'wrongtype', key, kind} end
  end
end
local function milliseconds()
  local now = redis.call('TIME')
  return now[1] * 1000 + math.floor(now[2] / 1000)
end
local odd = wrong()
if odd then return odd end
"""

# ARGV: format, lineage, number, digest (of the version that is changed), new number, new digest, the change, length of
# the log, then for each operation "put" name rule, or "rm" name "".
WRITE: Final = (
    _TYPES
    + """
local head = redis.call('HMGET', KEYS[1], 'format', 'lineage', 'number', 'digest', 'settles')
if not head[2] then return {'gone'} end
if head[1] ~= ARGV[1] then return {'format', head[1]} end
if head[2] ~= ARGV[2] or head[3] ~= ARGV[3] or head[4] ~= ARGV[4] then return {'moved', head[2], head[3]} end
if head[5] then
  local left = tonumber(head[5]) - milliseconds()
  if left > 0 and left < 60000 then return {'settling', left} end
end
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[8], ARGV[5] .. '-0', 'change', ARGV[7])
local more = 0
for at = 9, #ARGV, 3 do
  if ARGV[at] == 'put' then more = more + redis.call('HSET', KEYS[2], ARGV[at + 1], ARGV[at + 2])
  else more = more - redis.call('HDEL', KEYS[2], ARGV[at + 1]) end
end
local counted = redis.call('HMGET', KEYS[1], 'rules', 'counted')
if counted[1] and counted[2] == ARGV[3] then
  redis.call('HSET', KEYS[1], 'rules', string.format('%d', counted[1] + more), 'counted', ARGV[5])
end
redis.call('HSET', KEYS[1], 'number', ARGV[5], 'digest', ARGV[6])
redis.call('HDEL', KEYS[1], 'settles')
return {'ok'}
"""
)

# ARGV: format, lineage, number, digest, milliseconds in which only newer versions may follow, then names and rules.
# Writes a whole table where there is none, or an older one of the same lineage.
SEED: Final = (
    _TYPES
    + """
local head = redis.call('HMGET', KEYS[1], 'format', 'lineage', 'number')
if head[2] then
  if head[1] ~= ARGV[1] then return {'format', head[1]} end
  if head[2] ~= ARGV[2] or tonumber(head[3]) >= tonumber(ARGV[3]) then return {'moved', head[2], head[3]} end
end
redis.call('DEL', KEYS[2], KEYS[3])
redis.call('HSET', KEYS[1], 'format', ARGV[1], 'lineage', ARGV[2], 'number', ARGV[3], 'digest', ARGV[4],
  'rules', string.format('%d', (#ARGV - 5) / 2), 'counted', ARGV[3])
if tonumber(ARGV[5]) > 0 then redis.call('HSET', KEYS[1], 'settles', string.format('%d', milliseconds() + ARGV[5]))
else redis.call('HDEL', KEYS[1], 'settles') end
for at = 6, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[at], ARGV[at + 1]) end
redis.call('XADD', KEYS[3], ARGV[3] .. '-0', 'reset', ARGV[2])
return {'ok'}
"""
)

# ARGV: how many changes of the log to tell. Everything of one moment: head, table, and the newest changes.
LOAD: Final = (
    _TYPES
    + """
return {
  'ok',
  redis.call('HMGET', KEYS[1], 'format', 'lineage', 'number', 'digest', 'rules', 'counted'),
  redis.call('HGETALL', KEYS[2]),
  redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', ARGV[1])
}
"""
)
