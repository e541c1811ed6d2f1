#!lua flags=allow-oom
-- Scans a slice of a state for matches, without returning the messages.
--
-- KEYS[1]  queue name
-- ARGV     state, priority levels, order, cursor of the previous slice ('' for the first), filter as in list.lua,
--          'ids' to return the matches, 'failures' to return why they failed, too, or 'count'
-- Returns  {matches, a list of {id, sid} or {id, type, last error, failed at in seconds}, next cursor or '' at the end, number of matches}
--
-- Atomic, so that a message that changes its state is in the slice once. reading.lua describes the limits of a slice.

local state, levels, order, cursor, filter, wanted = unpack(ARGV)
highest_priority = levels - 1
filter = cjson.decode(filter)
filter.search = lower_texts(filter.search)
local next_block = blocks(state, tonumber(levels), order, cursor, filter)
local found, matched, ended = {}, 0, ''

repeat
  local block
  block, ended = next_block()
  read_records(block)
  for _, item in ipairs(block) do
    if is_match(item, filter, state) then
      matched = matched + 1
      if wanted == 'ids' then
        found[matched] = { item.id, item.sid }
      elseif wanted == 'failures' then
        local record = item.record
        spent = spent + 1 -- returning four texts costs as much again as reading an entry
        local failed_at = moment(record.failed_at) or moment(record.created_at) or NOW
        found[matched] = { item.id, text(record.type) or '', text(record.last_error) or '', tostring(failed_at) }
      end
    end
  end
until ended == '' or is_budget_spent()
return { found, ended, matched }
