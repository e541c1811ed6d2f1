#!lua flags=allow-oom
-- Reads one page of the messages in a place, the newest first.
--
-- ARGV     place, priority levels, most messages of the page, entries to skip before it, where an earlier page ended
--          ('' to begin), filter as JSON {type, priority, attempts, from, until, search}, field to sort by ('' for
--          stream order), '1' to sort ascending
-- Returns  {rows of {id, data, record, sid, stream}, where to go on or '' at the end, entries that matched, '1' when
--          the search stopped at its limit}
--
-- Atomic, so that a message which moves meanwhile is on the page once. With a filter, or a field to sort by, it looks at
-- a bounded number of entries, and always at a bounded number of bytes, because everybody else waits meanwhile; sorting
-- is within these. With allow-oom: messages of other producers get their record, so that what is seen can be acted on.

local place, levels, limit, skip, cursor, filter, sort_by, ascending = unpack(ARGV)
levels, limit, skip, filter = tonumber(levels), tonumber(limit), tonumber(skip), cjson.decode(filter)
local MOST_ENTRIES = 5000
local MOST_BYTES = 16 * 1024 * 1024
local PAGE = 100
filter.search = filter.search and string.lower(filter.search)
local is_filtered = next(filter) ~= nil
local is_ranked = sort_by ~= ''

-- Returns what people search: the payload, without the names around it.
local function searched(id, record, data)
  local _, before = string.find(data, '"payload":', 1, true)
  return string.lower(string.sub(data, (before or 0) + 1) .. ' ' .. id .. ' ' .. record.type .. ' ' .. (record.last_error or ''))
end

local function matches(id, record, data)
  return (not filter.type or record.type == filter.type)
    and (not filter.priority or record.priority == filter.priority)
    and (not filter.attempts or record.attempt_count == filter.attempts)
    and (not filter.from or record.created_at >= filter.from)
    and (not filter['until'] or record.created_at <= filter['until'])
    and (not filter.search or string.find(searched(id, record, data), filter.search, 1, true))
end

-- Sources: each gives its entries one by one, newest first, as {key, stream, sid, fields}.

local function stream_source(stream, rank, before, after)
  local entries, position = {}, 0
  local function fetch()
    local answer = redis.pcall('XREVRANGE', stream, before, after, 'COUNT', PAGE)
    entries, position = answer.err and {} or answer, 0
    if #entries > 0 then
      before = '(' .. entries[#entries][1]
    end
  end
  return function()
    if position == #entries then
      fetch()
    end
    position = position + 1
    local entry = entries[position]
    return entry and {
      key = sortable(entry[1]) .. string.format('/%03d', rank), stream = stream, sid = entry[1], fields = entry[2]
    }
  end
end

-- Where an earlier page ended, in a source of this rank: `sid/rank` of its last entry.
local function begin_of(rank)
  local sid, ended_at = string.match(cursor, '^(%d+-%d+)/(%d+)$')
  if not sid then
    return '+'
  end
  return rank < tonumber(ended_at) and sid or '(' .. sid
end

local function sources()
  local kept = ({ dead = DEAD, acknowledged = ACKNOWLEDGED, archived = ARCHIVED })[place]
  if kept then
    return { [0] = stream_source(kept, 0, begin_of(0), '-') }
  end
  local found = {}
  for priority = 0, levels - 1 do
    local stream = stream_of(priority)
    found[priority] = stream_source(stream, priority, begin_of(priority), '(' .. last_delivered(stream))
  end
  return found
end

local function newest_first()
  local open, heads = sources(), {}
  for rank, source in pairs(open) do
    heads[rank] = source()
  end
  return function()
    local newest
    for rank, head in pairs(heads) do
      if not newest or head.key > heads[newest].key then
        newest = rank
      end
    end
    local entry = newest and heads[newest]
    if entry then
      heads[newest] = open[newest]()
      entry.cursor = entry.sid .. '/' .. newest
    end
    return entry
  end
end

-- What is being processed: by deadline, the latest first. A page ends at a position.
local function held_ones()
  local position = tonumber(cursor) or 0
  return function()
    local id = redis.call('ZRANGE', DEADLINES, position, position, 'REV')[1]
    position = position + 1
    local record = id and record_of(id)
    if not id then
      return nil
    end
    local entry = record and record.sid and redis.call('XRANGE', record.stream, record.sid, record.sid)[1]
    return { stream = record and record.stream, sid = record and record.sid, fields = entry and entry[2] or {}, cursor = tostring(position) }
  end
end

local function row_of(entry)
  local data, id = data_of(entry.fields)
  id = identity(data, id)
  local record = id and record_of(id)
  if not record or record.sid ~= entry.sid then
    if not data then
      return nil
    end
    id, record = adopt(entry.stream, entry.sid, data)
    if id then
      save(id, record)
      if place == 'main' then
        index(id, record)
      end
    else
      id = entry.sid -- no message: a dead letter as soon as a consumer comes upon it
      record = normal({ stream = entry.stream, sid = entry.sid, priority = priority_of(entry.stream) })
      record.undecodable = true
    end
  end
  return { id = id, record = record, data = data, sid = entry.sid, stream = entry.stream }
end

local function rank_of(row)
  local value = row.record[sort_by]
  if sort_by == 'id' then
    value = row.id
  end
  return value
end

local function by_rank(one, other)
  local a, b = rank_of(one), rank_of(other)
  if a == b or type(a) ~= type(b) then
    if a ~= nil and b ~= nil or a == b then
      return one.place < other.place
    end
    return a ~= nil -- those without the field come last
  end
  if ascending == '1' then
    return a < b
  end
  return a > b
end

local next_one = place == 'processing' and held_ones() or newest_first()
local rows, matched, looked, bytes, ended, stopped = {}, 0, 0, 0, '', '0'
while true do
  if not is_ranked and #rows == limit then
    break
  end
  if bytes > MOST_BYTES or (is_filtered or is_ranked) and looked == MOST_ENTRIES then
    stopped = '1'
    break
  end
  local entry = next_one()
  if not entry then
    ended = ''
    break
  end
  looked, ended = looked + 1, entry.cursor
  if is_filtered or is_ranked or looked > skip then
    local row = row_of(entry)
    bytes = bytes + (row and #row.data or 0)
    if row and (not is_filtered or matches(row.id, row.record, row.data)) then
      matched = matched + 1
      row.place = matched
      if is_ranked or not is_filtered or matched > skip then
        rows[#rows + 1] = row
      end
    end
  end
end
if is_ranked then
  table.sort(rows, by_rank)
end
local answer = {}
local first = is_ranked and skip + 1 or 1
for i = first, math.min(#rows, first + limit - 1) do
  local row = rows[i]
  answer[#answer + 1] = { row.id, row.data, cjson.encode(row.record), row.sid, row.stream }
end
return { answer, ended, matched, stopped }
