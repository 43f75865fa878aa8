(class_definition name: (identifier) @name) @class
(mixin_declaration (identifier) @name) @class
(enum_declaration name: (identifier) @name) @enum
(comment) @attach
