(body (block (identifier) . (string_lit (template_literal) @name)) @type)
(comment) @attach
